"""`python -m outlast`."""

import sys

from outlast.cli import main

sys.exit(main())
