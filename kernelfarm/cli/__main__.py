"""`python -m kernelfarm.cli`: the same as the `kernelfarm` command."""

from kernelfarm.cli import main

main()
