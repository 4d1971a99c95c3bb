"""`totalorder bench kernel`."""
