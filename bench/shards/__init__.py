"""`totalorder bench shards`."""
