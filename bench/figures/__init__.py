"""`totalorder bench figures`: the paper's figures."""
