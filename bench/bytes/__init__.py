"""`totalorder bench bytes`."""
