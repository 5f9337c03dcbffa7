"""The benchmark's command, `python -m tests.throughput`; what it does stands in bench/throughput.py."""

import sys

from bench.throughput import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before there was a run to tell of
        sys.exit(130)
