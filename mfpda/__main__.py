"""``python -m mfpda``."""

import sys

from mfpda.cli import main

sys.exit(main())
