"""How far a whole study is: arms at their end, the share of all steps of all seeds, time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from outlast.studies.base import Arm
from outlast.studies.runner import ENDS, FINAL_STATES, Update
from outlast.workflow.progress import Total


class StudyProgress:
    """Adds up what the updates of all arms say.

    The time left is by the steps that were made since the start. Arms that were done before count
    as done, and so do the steps that a resumed arm had before, but neither says how fast it goes.
    An arm that failed or was stopped is not at its end, and takes no more time.
    """

    def __init__(self, arms: Sequence[Arm], clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.begun = clock, clock()
        self.blocks = {arm.name: arm.run.settings.steps_per_block for arm in arms}
        self.seeds = {arm.name: len(arm.run.seeds) for arm in arms}
        #: seed-steps of each arm: all, made so far, and made before this start
        self.steps_total = {arm.name: arm.run.settings.steps * len(arm.run.seeds) for arm in arms}
        self.steps_done = dict.fromkeys(self.steps_total, 0)
        self.steps_before: dict[str, int] = {}
        #: the last states of the arms of which nothing more is said
        self.final: dict[str, str] = {}

    def take(self, update: Update) -> Total:
        """Where the study stands after an update."""
        arm, progress = update.arm, update.progress
        if progress is not None:
            step = progress.steps if progress.over else progress.step
            first = max(0, progress.step - self.blocks[arm])
            self.steps_before.setdefault(arm, first * self.seeds[arm])
            self.steps_done[arm] = step * self.seeds[arm]
        if update.state in FINAL_STATES:
            self.final[arm] = update.state
        if update.state in (*ENDS, "testing"):
            self.steps_done[arm] = self.steps_total[arm]
            self.steps_before.setdefault(arm, self.steps_total[arm])
        return self.total()

    def total(self) -> Total:
        """The sum over all arms."""
        left = sum(
            self.steps_total[arm] - self.steps_done[arm]
            for arm in self.steps_total
            if arm not in self.final
        )
        gained = sum(self.steps_done[arm] - before for arm, before in self.steps_before.items())
        share = sum(self.steps_done.values()) / sum(self.steps_total.values())
        seconds = (self.clock() - self.begun) * left / gained if gained else None
        states = list(self.final.values())
        words = [f"{sum(map(states.count, ENDS))} of {len(self.steps_total)} arms at their end"]
        for state in FINAL_STATES:
            if state not in ENDS and state in states:
                words.append(f"{states.count(state)} {state}")
        return Total(share, seconds, ", ".join([*words, f"{100 * share:.0f} % of all seed-steps"]))
