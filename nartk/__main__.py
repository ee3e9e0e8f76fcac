"""`python -m nartk`: the command `nartk`."""

import sys

from nartk.cli.nartk import main

if __name__ == "__main__":
    sys.exit(main())
