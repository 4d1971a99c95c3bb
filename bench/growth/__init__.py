"""`totalorder bench growth`."""
