"""`python -m cstorch.command_line`: the command `cstorch`."""

from cstorch.command_line import main

main()
