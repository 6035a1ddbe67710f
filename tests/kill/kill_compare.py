"""What differs between a folder whose commands were killed and one whose commands were not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open

#: its text is the process that has the folder, or had it last
LOCK = ".lock"


def files(folder: Path) -> dict[str, Path]:
    """Every file and folder in a folder but locks."""
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {name: path for name, path in paths.items() if path.name != LOCK}


def differences(folder: Path, reference: Path) -> tuple[int, list[str]]:
    """How many bits differ, and which files do, are missing or should not be there."""
    ours, expected = files(folder), files(reference)
    faults = [f"left over: {name}" for name in ours if name not in expected]
    faults += [f"missing: {name}" for name in expected if name not in ours]
    total = 0
    for name, path in expected.items():
        if name in ours and path.is_file():
            bits = differing_bits(_contents(ours[name]), _contents(path))
            total += bits
            faults += [f"{name} differs in {bits} bits"] * (bits > 0)
    return total, faults


def _contents(path: Path) -> dict[str, bytes]:
    """The parts of a file: the tensors and the header of a checkpoint, or all of its bytes."""
    if path.suffix != ".safetensors":
        return {"": path.read_bytes()}
    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = {f"header {name}": text.encode() for name, text in file.metadata().items()}
    described = {n: f"{t.dtype} {t.shape}".encode() for n, t in tensors.items()}
    return header | {n: described[n] + t.tobytes() for n, t in tensors.items()}


def differing_bits(ours: dict[str, bytes], expected: dict[str, bytes]) -> int:
    """The bits in which parts differ; those beyond the shorter of two count in full."""
    total = 0
    for name in ours.keys() | expected.keys():
        one, other = (np.frombuffer(each.get(name, b""), np.uint8) for each in (ours, expected))
        common = min(len(one), len(other))
        total += int(np.bitwise_count(one[:common] ^ other[:common]).sum())
        total += 8 * abs(len(one) - len(other))
    return total
