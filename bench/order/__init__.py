"""`totalorder bench order`."""
