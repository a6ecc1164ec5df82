"""`python -m kinfolk` is the command `kin`."""

import sys

from kinfolk.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
