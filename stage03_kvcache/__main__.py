"""`python -m` with the name of this directory: the command line, see cli.py."""

import sys

try:
    from .cli import main
except KeyboardInterrupt:  # while torch is being loaded, which takes a second
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
