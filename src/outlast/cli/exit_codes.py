"""Exit codes of the command line."""

from __future__ import annotations

#: a study with an arm that failed, or without an arm that has a sound seed; an item that breaks a
#: rule of `outlast check`
FAILED = 1
#: an error that a user can mend
MISTAKE = 2
#: a run that was asked to stop and was saved
STOPPED = 130
#: the program that read the output has left, as `head` does
NO_READER = 141
