"""`totalorder bench peers`."""
