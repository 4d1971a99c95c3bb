"""`totalorder bench job`: the job beside copies, or beside another installation's."""
