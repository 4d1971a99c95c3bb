"""`python -m totalorder.cli` is `totalorder`."""

from totalorder.cli.app import main

main()
