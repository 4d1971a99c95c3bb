"""`python -m totalorder.cli` is `totalorder`."""

from totalorder.entry import main

main()
