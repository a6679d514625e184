"""`python -m kernelfarm.cli` runs the `kernelfarm` command."""

from kernelfarm.cli import main

main()
