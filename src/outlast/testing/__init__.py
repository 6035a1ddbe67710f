"""Tests for items of other packages: what every task, mixer, scheme, ... must hold to.

``outlast check NAME`` prints the report of `check`. In a test of one's own::

    import outlast.testing

    def test_my_mixer_conforms() -> None:
        outlast.testing.check("mymixer(size=4)").raise_failures()

Each rule is a function in the file of its kind: `tasks.py` and `sampling.py`, `mixers.py` (presets
too), `attention.py` (schemes and weights), `methods.py`, `studies.py`. `training.py` has what takes
training to see. The library's own items are tested by the same rules, in `tests/conformance/`.
"""

from __future__ import annotations

from outlast.testing.checking import Report, check
from outlast.testing.rules import NotApplicable, Result, Violation

__all__ = ["NotApplicable", "Report", "Result", "Violation", "check"]
