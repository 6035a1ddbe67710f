"""Without its extra, a package of ours says what to install."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
sys.modules[{library!r}] = None  # as if it were not installed
import outlast
try:
    {statement}
except outlast.OutlastError as error:
    print(error)
"""


@pytest.mark.parametrize("statement", ["import outlast.{}", "outlast.{}.DelayedAttention"])
@pytest.mark.parametrize(("package", "library"), [("hf", "transformers"), ("lightning",) * 2])
def test_missing_extra_is_an_error_that_says_what_to_install(package, library, statement):
    script = SCRIPT.format(statement=statement.format(package), library=library)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"pip install -e '.[{package}]' in a clone" in done.stdout, done.stderr
