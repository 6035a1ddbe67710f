"""The tools that build the site can be imported."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools"))
