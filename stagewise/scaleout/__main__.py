"""`python -m stagewise.scaleout STAGE …`; `python -m stage06 --ray …` comes here too."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(f"stage{int(sys.argv[1]):02}", sys.argv[2:]))
