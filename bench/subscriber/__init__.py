"""`totalorder bench subscriber`: a Subscriber beside the clients that it reads by."""
