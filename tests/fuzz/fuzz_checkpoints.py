"""Checkpoints that are damaged, cut, foreign or edited: refused, unless they are as they were."""

from __future__ import annotations

import json
import shutil
import struct
from functools import cache
from pathlib import Path
from random import Random

import torch
from fuzz_folders import _changed
from oracle import Case, check, command
from sample_folders import samples

from outlast.runs.checkpoint import CHECKSUM, ROWS, STATE, _text_checksum, load_checkpoint
from outlast.runs.folder import CHECKPOINT
from outlast.runs.records import read_run
from outlast.workflow.load import load


@cache
def _saved() -> bytes:
    return (samples() / "run" / CHECKPOINT).read_bytes()


def checkpoint_case(random: Random) -> Case:
    """A checkpoint with damage that a checksum must show, or with a header that was edited."""
    edited = random.random() < 0.4
    data, how = _edited(random) if edited else _damaged(random)
    verb = random.choice(("read", "read", "load", "eval", "resume", "subset"))

    def prepare(home: Path) -> None:
        shutil.copytree(samples() / "run", home / "run")
        if random.random() < 0.3:
            (home / "run" / "results.json").unlink()  # then resume tests it again
        (home / "run" / CHECKPOINT).write_bytes(data)

    return Case(f"{verb}, after {how}", lambda home: use(home / "run", verb, edited), prepare)


def use(folder: Path, verb: str, edited: bool) -> None:
    """Use the checkpoint. If it is read whole, it is what was saved, unless it was edited."""
    match verb:
        case "load":
            model = load(folder, 1)
            check(all(bool(p.isfinite().all()) for p in model.parameters()), "weights not finite")
        case "eval":
            command("eval", str(folder), "--lengths", "1", "--sequences", "2")
        case "resume":
            command("resume", str(folder))
        case "subset":
            command("resume", str(folder), "--seeds", "1", "--out", "new")
        case "read":
            _compare(folder, edited)


def _compare(folder: Path, edited: bool) -> None:
    tensors, state = load_checkpoint(folder, run=read_run(folder).spec)
    if not edited:
        sound, sound_state = load_checkpoint(samples() / "run")
        check(state == sound_state, "the state of a damaged checkpoint was taken")
        check(tensors.keys() == sound.keys(), "tensors are missing")
        check(all(torch.equal(tensors[n], sound[n]) for n in sound), "damaged numbers were taken")


def _damaged(random: Random) -> tuple[bytes, str]:
    data = bytearray(_saved())
    (length,) = struct.unpack("<Q", data[:8])
    place = random.choice((random.randrange(8 + length), random.randrange(len(data))))
    match random.randrange(7):
        case 0 | 1 | 2:
            data[place] ^= 1 << random.randrange(8)
            return bytes(data), f"a bit of byte {place} was flipped"
        case 3:
            return bytes(data[:place]), f"it was cut at {place}"
        case 4:
            return bytes(data) + random.randbytes(9), "bytes were added"
        case 5:
            size = random.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
            return struct.pack("<Q", size) + bytes(data[8:]), f"its header was {size} long"
    return (samples() / "other" / CHECKPOINT).read_bytes(), "that of another run took its place"


def _edited(random: Random) -> tuple[bytes, str]:
    """A header with a value changed in it; its checksum fits, so deeper checks have to see it."""
    data = _saved()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    about = header["__metadata__"]
    target = random.choice((STATE, STATE, STATE, ROWS, "tensors"))
    if target == "tensors":
        names = [name for name in header if name != "__metadata__"]
        name = random.choice(names)
        header[name] = _changed(random, header[name])
    else:
        about[target] = json.dumps(_changed(random, json.loads(about[target])))
        about[CHECKSUM] = _text_checksum(about[STATE], about[ROWS])
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + data[8 + length :], f"{target} was edited"
