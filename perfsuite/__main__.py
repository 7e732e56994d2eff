"""`python -m perfsuite`, the same as the command `perfsuite`."""

import sys

from perfsuite.commands import main

if __name__ == "__main__":
    sys.exit(main())
