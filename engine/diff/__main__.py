"""`python -m engine.diff`: the command line."""

import sys

from engine.diff.cli import main

sys.exit(main())
