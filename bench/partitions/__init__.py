"""`totalorder bench partitions`."""
