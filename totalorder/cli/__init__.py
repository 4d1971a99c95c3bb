"""The command line. `app` puts the commands together; each command is a module of its own with a `register`."""
