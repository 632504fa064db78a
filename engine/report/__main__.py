"""`python -m engine.report DIR [DIR ...]`: build a report again from its folders, or compare several."""

import sys

from engine.report.command import main

sys.exit(main())
