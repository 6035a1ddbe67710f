"""When a seed is done before its last step: a setting, written as a spec.

::

    stop=never                                    every seed is trained to its last step
    stop=success                                  until it has succeeded, with the defaults below
    stop=success(accuracy=0.95, at=3, probes=4)

A seed has succeeded when the share of sequences it gets entirely right was at least `accuracy` in
`probes` probes in a row, at `at` times the training length, on fresh sequences each time. From then
on its weights rest, and a run none of whose seeds is left to train has ended.

- A probe has 128 sequences, so a level above 127/128 asks for all of them.
- What is probed is what would be tested: the weights' average where one is kept, gates as they are.
  A seed may succeed before a method is through with it.
- A learning rate that falls by a schedule has not fallen yet: a seed that is stopped early ends on
  the rate of that step, and is not the seed that a shorter run of the same schedule would give.
- With `at=3` training ends at a moment that was chosen by accuracy beyond the training length. That
  is a fair question of how soon, and not a fair measure of how well.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.arguments import build_from
from outlast.errors import SpecError, bad_value
from outlast.registry import suggest
from outlast.specs import Spec, parse

NEVER = "never"
#: the multiples of the training length that are probed, and on how many sequences
MULTIPLES = (1, 3)
SEQUENCES = 128


@dataclass(frozen=True)
class Success:
    """Enough sequences right, for long enough."""

    accuracy: float = 0.999
    at: int = 1
    probes: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.accuracy <= 1:
            raise bad_value(
                "stop: accuracy", self.accuracy, "a share of sequences above 0, up to 1"
            )
        if self.at not in MULTIPLES:
            raise bad_value("stop: at", self.at, f"a multiple that is probed, {_shown(MULTIPLES)}")
        if self.probes < 1:
            raise bad_value("stop: probes", self.probes, "a whole number >= 1")

    def __str__(self) -> str:
        given = (("accuracy", self.accuracy), ("at", self.at), ("probes", self.probes))
        return str(Spec("success", (), given))


def read_stop(text: str) -> Success | None:
    """What stands behind ``stop=``; None is never."""
    try:
        spec = parse(text)
    except SpecError as error:
        raise SpecError(f"stop={text}: expected never or success; {error}") from None
    if spec == Spec(NEVER):
        return None
    if spec.name != "success":
        raise SpecError(f"stop={text}: expected never or success{suggest(spec.name, _KNOWN)}")
    made: Success = build_from(spec, Success, _FIELDS, "stop")
    return made


_KNOWN = (NEVER, "success")
_FIELDS = {"accuracy": float, "at": int, "probes": int}


def _shown(multiples: tuple[int, ...]) -> str:
    return " or ".join(map(str, multiples))
