"""`python -m relaxcomm` and `torchrun -m relaxcomm` are the command line."""

from relaxcomm.cli import main

if __name__ == "__main__":
    main()
