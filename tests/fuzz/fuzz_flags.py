"""Flags of every verb: a command does its work, or is refused before anything is written."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from random import Random

import values
from oracle import Case, check, command
from sample_folders import samples

from outlast.errors import OutlastError

#: a run of two steps; any flag may be replaced
TRAIN = {
    "--task": "parity(length=4)",
    "--model": "mlp @ 4",
    "--steps": "2",
    "--batch-size": "2",
    "--steps-per-block": "1",
    "--probe-every": "0",
    "--checkpoint-every": "1",
    "--warmup": "0",
    "--out": "new",
}
WHOLE = ("--steps", "--batch-size", "--steps-per-block", "--warmup", "--probe-every",
         "--checkpoint-every", "--seeds-at-once", "--processes")  # fmt: skip
REAL = ("--lr", "--decay-from", "--max-grad-norm", "--weight-decay")
PATHS = ("run", "grid", "study", "run/run.json", "missing", "", ".", "..", "/", "run/../run")
#: with one of these a command would rightly take long
NOT_HUGE = ("--steps", "--sequences", "--repeats", "--seeds-at-once")


def flag_case(random: Random) -> Case:
    """A command with one or a few flags that are not what they should be."""
    verbs = {
        _train: 6, _eval: 3, _resume: 3, _report: 2, _reproduce: 2, _show: 3, _list: 1, _bench: 2,
        _any: 2,
    }  # fmt: skip
    words = random.choices(list(verbs), list(verbs.values()))[0](random)
    return Case(f"outlast {words!a}", lambda home: _use(home, words), _prepare)


def _prepare(home: Path) -> None:
    for name in ("run", "grid", "study"):
        shutil.copytree(samples() / name, home / name)


def _use(home: Path, words: list[str]) -> None:
    try:
        command(*words)
    except OutlastError as error:
        if "No seed is left to train" not in str(error):  # that is a result, and it is kept
            raise
    for path in home.glob("*/results*.json"):
        for row in json.loads(path.read_text()).get("rows", ()):
            shares = (row.get("exact") or {}).values()
            check(all(math.isfinite(x) and 0 <= x <= 1 for x in shares), f"shares of {row}")
    check(not list(home.rglob(".*.json.*")), "temporary files are left")


def _flags(random: Random, flags: dict[str, str], pool: dict[str, list[str]]) -> list[str]:
    """Flags of which some are replaced by values of a pool, dropped, doubled or misspelt."""
    chosen = dict(flags)
    for flag in random.sample(sorted(pool), min(len(pool), random.choice((1, 1, 1, 2, 3)))):
        chosen[flag] = random.choice(pool[flag])
    words = [word for flag, value in chosen.items() for word in (flag, value)]
    match random.randrange(12):
        case 0 if words:
            del words[random.randrange(len(words))]
        case 1 if words:
            place = random.randrange(len(words))
            words[place] = values.mutated(random, words[place])
        case 2:
            words.append(values.word(random))
    return words


def _train(random: Random) -> list[str]:
    def number(flag: str) -> list[str]:
        return [values.number(random, huge=flag not in NOT_HUGE)]

    pool = {flag: number(flag) for flag in (*WHOLE, *REAL)}
    pool |= {
        "--seeds": ["0-3", "0,0", "5-1", "0-99999999999999", "0-99999", "-1", "٣", "9" * 5000],
        "--grid": [f"lr={values.number(random)},{values.number(random)}", "method=none,dat", "lr=",
                   "lr=" + ",".join(map(str, range(2000))), values.mutated(random, "lr=0.1,0.2")],
        "--stop": ["never", f"success({values.number(random)})", values.mutated(random, "success")],
        "--method": [f"ema({values.number(random)})", f"random_positions({values.number(random)})"],
        "--out": [values.word(random), *PATHS],
        "--label": [values.word(random)],
        "--device": [values.word(random), "cuda:99", "meta", "cpu:0", "cpu:7", "cuda:-1"],
        "--schedule": ["cosine", "constant", values.word(random)],
        "--precision": ["bf16", "tf32", "auto", values.word(random)],
        "--model": [f"mlp @ {values.number(random)}", "attention(heads=2) @ 4", "lstm > mlp @ 4"],
        "--task": [f"parity(length={values.number(random)})", f"copy({values.number(random)})"],
    }  # fmt: skip
    return ["train", *_flags(random, TRAIN, pool)]


def _eval(random: Random) -> list[str]:
    pool = {
        "--lengths": [values.number(random)],
        "--sequences": [values.number(random, huge=False)],
        "--out": [values.word(random), "x.json", "run/x.json", *PATHS],
        "--device": [values.word(random)],
        "--precision": ["bf16", values.word(random)],
    }
    usual = {"--lengths": "1", "--sequences": "2"}
    return ["eval", random.choice(("run", "run", *PATHS)), *_flags(random, usual, pool)]


def _resume(random: Random) -> list[str]:
    pool = {
        "--seeds": ["0", "1", "7", "0-1", values.number(random)],
        "--out": [values.word(random), "new", *PATHS],
        "--seeds-at-once": [values.number(random)],
        "--processes": [values.number(random)],
        "--device": [values.word(random)],
    }
    folders = random.choices(("run", "run", "run", *PATHS), k=random.choice((1, 1, 1, 2)))
    return ["resume", *folders, *_flags(random, {}, pool)]


def _report(random: Random) -> list[str]:
    """Most are refused: a page takes seconds."""
    out = random.choice((values.word(random), "run/run.json", "", ".", "run/run.json/x"))
    if random.random() < 0.95:
        return ["report", random.choice(("missing", "", "run/run.json", "\0", "..")), "--out", out]
    return ["report", random.choice(("run", "grid", "study")), "--out", out]


def _reproduce(random: Random) -> list[str]:
    pool = {
        "--seeds": ["0-3", "", values.number(random), values.word(random)],
        "--steps": [values.number(random)],
        "--workers": [values.number(random)],
        "--arms": [values.word(random), "joint", "*"],
        "--scale": ["demo", values.word(random)],
        "--out": [values.word(random), *PATHS],
        "--device": [values.word(random)],
    }
    study = random.choice(("dat", "dat", values.word(random)))
    words = ["reproduce", study, *_flags(random, {"--arms": "joint"}, pool)]
    return [*(word for word in words if not word.startswith("--d")), "--dry"]


def _show(random: Random) -> list[str]:
    line = random.choice((
        f"composite(modulus={values.number(random)})", f"recall(keys={values.number(random)})",
        f"attention(heads={values.number(random)})", f"{values.number(random)} x (mlp) @ 8",
        f"learned(ceiling={values.number(random)})", f"lstm @ {values.number(random)}",
        f"dat(switch={values.number(random)})", values.nested(random, "mlp"), values.word(random),
        values.mutated(random, "4 x (lstm > attention(rope, heads=2) > mlp) @ 8"),
        f"topk(k={values.number(random)})", f"t5(buckets={values.number(random)})",
    ))  # fmt: skip
    return ["show", line]


def _list(random: Random) -> list[str]:
    return ["list", random.choice(("task", "tasks", values.word(random), values.raw(random)))]


def _bench(random: Random) -> list[str]:
    """All are refused: a bench takes seconds."""
    bad = random.choice((
        ("--budget", random.choice(("nan", "inf", "-1", "0", "1e400", values.word(random)))),
        ("--repeats", random.choice(("0", "-1", "9" * 30, "9" * 5000, "1.5", "nan"))),
        ("--out", random.choice(("", ".", "run", "x.png", "no/x.json", "\0.json", "\udcff"))),
        ("--layout", values.word(random)), ("--sections", "none"), ("--run", "missing"),
    ))  # fmt: skip
    return ["bench", random.choice(("tra", "lstm", "seeds")), "--sections", "no such one", *bad]


def _any(random: Random) -> list[str]:
    """Words at random."""
    verbs = ("list", "show", "eval", "resume", "report", "doctor", "--version", "-h", "trian", "")
    rest = [values.word(random) for _ in range(random.choice((0, 1, 2)))]
    return [random.choice((*verbs, values.raw(random))), *rest]
