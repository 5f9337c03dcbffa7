"""`python -m` with the name of this directory: the command line, see cli.py."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
