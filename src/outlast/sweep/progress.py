"""How far a sweep is: packs by state, seeds per second, the time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from outlast.sweep.engine import PackUpdate
from outlast.sweep.packs import Pack
from outlast.workflow.progress import clock

#: states in the order in which they are shown; a pack that failed or was stopped is at its end
STATES = ("running", "waiting", "done", "lost", "failed", "stopped")
OVER = ("done", "failed", "stopped")


class SweepProgress:
    """Adds up the updates of all packs. Packs that were done before do not count for the speed."""

    def __init__(self, packs: Sequence[Pack], now: Callable[[], float] = time.monotonic) -> None:
        self.packs = {pack.name: pack for pack in packs}
        self.now, self.begun = now, now()
        #: the last update of each pack that has one
        self.updates: dict[str, PackUpdate] = {}
        #: the share of each pack's seed-steps that is made, and that was made before this start
        self.shares: dict[str, float] = dict.fromkeys(self.packs, 0.0)
        self.before: dict[str, float] = {}
        #: how often a pack was lost, all together
        self.losses = 0

    def take(self, update: PackUpdate) -> None:
        name = update.pack.name
        before = self.updates.get(name)
        self.losses += update.state == "lost"
        if update.progress is not None:
            self.shares[name] = update.progress.share
            self.before.setdefault(name, update.progress.share)
        if update.state == "done":
            self.before.setdefault(name, 0.0 if before else 1.0)
            self.shares[name] = 1.0
        if update.progress is None and before is not None and update.state == before.state:
            return  # nothing new
        self.updates[name] = update

    def state(self, name: str) -> str:
        return self.updates[name].state if name in self.updates else "waiting"

    @property
    def counts(self) -> Counter[str]:
        """Packs by state."""
        return Counter(map(self.state, self.packs))

    @property
    def seeds_per_second(self) -> float | None:
        """Whole seeds that are trained in a second, as shares of seeds add up; None at first."""
        return self._rate(lambda pack: pack.seeds)

    @property
    def seconds_left(self) -> float | None:
        """By the steps that are left, as seeds of one pack may have more of them; None at first."""
        rate = self._rate(lambda pack: pack.seed_steps)
        left = sum(
            pack.seed_steps * (1 - self.shares[name])
            for name, pack in self.packs.items()
            if self.state(name) not in OVER
        )
        return None if rate is None else left / rate

    @property
    def is_over(self) -> bool:
        return all(self.state(name) in OVER for name in self.packs)

    def _rate(self, size: Callable[[Pack], int]) -> float | None:
        """What is made of all packs in a second; `size` says how much a pack is."""
        gained = sum(
            size(self.packs[name]) * (self.shares[name] - before)
            for name, before in list(self.before.items())  # another thread draws it
        )
        seconds = self.now() - self.begun
        return gained / seconds if gained > 0 and seconds > 0 else None

    def __str__(self) -> str:
        """``1 running, 3 waiting, 4 done; 0.52 seeds/s, about 1:20 left``."""
        counts = self.counts
        shown = [f"{counts[s]} {s}" for s in STATES if counts[s] or s in STATES[:3]]
        if self.losses:
            shown.append(f"{self.losses} lost and tried again")
        rate, left = self.seeds_per_second, self.seconds_left
        speed = "" if rate is None else f"; {rate:.3g} seeds/s"
        if left:
            speed += f", about {clock(left)} left"
        return ", ".join(shown) + speed
