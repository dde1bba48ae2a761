"""Entry point of `python -m shardalg`."""

import sys

from shardalg.cli import main

if __name__ == "__main__":
    sys.exit(main())
