"""`python -m nodewire.cli`."""

from nodewire.cli import main

main()
