"""What a benchmark is: its sections, where they run, and what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from outlast.bench.timing import Bench, Row
from outlast.errors import bad_value, incompatible

Section = Callable[[Bench], None]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by its name.

    Args:
        name: What `outlast bench` calls it.
        sections: Functions that measure something and add rows, by name.
        cpu_sections: Those that need no CUDA device.
        defaults: The sections that run if none are named, by type of device.
        prepare: Compiles what some sections need, before anything is timed on a GPU, if there is
            much of it.
        layouts: What `--layout` accepts, with the model's line; the first is the default.
        run_section: The section that measures a trained run (`--run`), if there is one.
        draw: Draws rows as a PNG under a title, if there is a figure.
    """

    name: str
    sections: Mapping[str, Section]
    cpu_sections: tuple[str, ...]
    defaults: Mapping[str, tuple[str, ...]]
    prepare: Callable[[Bench, Sequence[str]], None] | None = None
    layouts: Mapping[str, str] = field(default_factory=dict)
    run_section: str | None = None
    draw: Callable[[Sequence[Row], Path, str], bool] | None = None

    def choose_layout(self, layout: str | None) -> str:
        """The layout that was asked for, or the default; "" where there are none."""
        if layout is not None and layout not in self.layouts:
            if not self.layouts:
                reason = "it has one model alone"
                raise incompatible(f"--layout {layout}", f"outlast bench {self.name}", reason)
            raise bad_value("layout", layout, " | ".join(self.layouts))
        return layout or next(iter(self.layouts), "")

    def choose_sections(self, names: Sequence[str], device: torch.device) -> tuple[str, ...]:
        """The sections that were asked for, or the defaults of the device."""
        for name in names:
            if name not in self.sections:
                raise bad_value("sections", name, " | ".join(self.sections))
            if device.type != "cuda" and name not in self.cpu_sections:
                accepted = f"{' | '.join(self.cpu_sections)} where there is no CUDA device"
                raise bad_value("sections", name, accepted)
        return tuple(names) or self.defaults[device.type]

    def check_run(self, run: Path | None, sections: Sequence[str]) -> None:
        """A run is an error if no section measures it."""
        if run is not None and self.run_section not in sections:
            section = self.run_section
            reason = f"add --sections {section}" if section else "it measures no run"
            raise incompatible(f"--run {run}", f"outlast bench {self.name}", reason)
