"""`python -m engine.replay`: the command line."""

import sys

from engine.replay.cli import main

sys.exit(main())
