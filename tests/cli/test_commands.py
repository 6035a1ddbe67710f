"""The command line: help with an example that works, and mistakes that are explained in a line."""

from __future__ import annotations

import errno
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from rich.console import Console
from rich.status import Status
from shell import Shell

from outlast.cli import VERBS, main
from outlast.cli.exit_codes import MISTAKE, NO_READER, STOPPED
from outlast.errors import SpecError
from outlast.runs.folder import CHECKPOINT, LOCK, METRICS, PREVIOUS_RESULTS, RESULTS, RUN
from outlast.runs.records import read_results, read_run
from outlast.runs.spec import RENAMED, read_seeds, seed_words
from outlast.version import __version__
from outlast.workflow.train import open_trainer
from tiny_runs import CPU, create, outlast, tiny, trained

#: the order in which one example can use what another left
ORDER = (
    "list", "show", "check", "train", "sweep", "resume", "eval", "analyse", "report", "view",
    "export", "reproduce", "bench", "doctor", "completion",
)  # fmt: skip


def example(verb: str) -> list[str]:
    """The words after ``outlast`` in the verb's own example."""
    function = importlib.import_module(f"outlast.cli.{verb}_").main
    examples = re.findall(r"^\s*Example: outlast (.+)$", function.__doc__, re.MULTILINE)
    assert len(examples) == 1, f"{verb} has {len(examples)} examples"
    return shlex.split(examples[0])


# ---- help and examples -------------------------------------------------------------------------


def test_every_verb_has_a_file_and_a_place_in_the_order() -> None:
    assert sorted(ORDER) == sorted(VERBS)
    files = Path(importlib.import_module("outlast.cli").__file__ or "").parent.glob("*_.py")
    assert {f.stem.rstrip("_") for f in files if f.stem != "__init__"} == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_an_example(verb: str, shown: Shell) -> None:
    text = shown(verb, "--help").line
    assert f"usage: outlast {verb}" in text
    assert f"Example: outlast {verb}" in text


def test_help_lists_every_verb(shown: Shell) -> None:
    text = shown("--help").line
    assert "outlast --version" in text
    assert "outlast completion bash" in text
    assert all(re.search(rf"\b{verb}\b", text) for verb in VERBS)


def test_examples_run_one_after_the_other(here: Path, shown: Shell) -> None:
    for verb in ORDER:
        words = example(verb)
        assert words[0] == verb
        assert shown(*words).out.strip(), f"{verb} says nothing"
    folder = here / "runs" / "parity"
    assert {RUN, METRICS, CHECKPOINT, RESULTS} <= {p.name for p in folder.iterdir()}
    assert read_results(folder / RESULTS).sequences == 500
    assert (folder / "report" / "index.html").stat().st_size > 1000
    assert sorted(p.name for p in here.iterdir()) == ["runs"]


@pytest.mark.parametrize("word", ["--help", "doctor"])
def test_python_dash_m_runs_the_command_line(word: str) -> None:
    process = outlast(word)
    assert process.returncode == 0, process.stderr
    assert "outlast" in process.stdout


def test_usual_words_stand_for_flags(shown: Shell) -> None:
    assert shown("help").out == shown("--help").out
    assert shown("help", "train").out == shown("train", "--help").out
    assert shown("version").out == shown("-V").out == shown("--version").out


@pytest.mark.parametrize(
    ("verb", "name"),
    [("show", "SPEC"), ("eval", "FOLDER"), ("resume", "FOLDER"), ("export", "DIR"),
     ("reproduce", "STUDY"), ("bench", "NAME")],
)  # fmt: skip
def test_missing_argument_is_named(verb: str, name: str, run: Shell) -> None:
    code, out, err = run(verb)
    assert code == MISTAKE
    assert name in (out + err).split()


def test_error_on_a_terminal_breaks_between_words(
    monkeypatch: pytest.MonkeyPatch, run: Shell
) -> None:
    console = Console(width=40)
    monkeypatch.setattr("outlast.cli.common.console", console)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    error = run("reproduce", "dat", "--arms", "jiont").err
    assert "joint" in error
    assert "\n" in error.rstrip()
    assert max(map(len, error.splitlines())) <= 40


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_and_flags(shell: str, shown: Shell) -> None:
    script = shown("completion", shell).out
    assert all(verb in script for verb in VERBS)
    assert "seeds-at-once" in script


def test_version_is_shown(shown: Shell) -> None:
    assert shown("--version").out == f"outlast {__version__}\n"


def test_reader_that_leaves_early_gets_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m outlast completion bash"
    process = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"], capture_output=True, text=True
    )
    assert (process.returncode, process.stderr) == (NO_READER, "")


def test_installed_script_is_main() -> None:
    (script,) = entry_points(group="console_scripts", name="outlast")
    assert script.load() is main


# ---- mistakes ----------------------------------------------------------------------------------

TRAIN = ("train", "--task", "parity", "--model", "lstm @ 8", "--out", "new")
MISTAKES: list[tuple[Sequence[str], str]] = [
    (("trian",), r"there is no command 'trian'; did you mean 'train'\?"),
    ((*TRAIN, "--task", "party"), r"there is no task 'party'; did you mean 'parity'\?"),
    ((*TRAIN, "--task", "parity(lenght=4)"), r"has no argument 'lenght'; did you mean 'length'\?"),
    ((*TRAIN, "--task", "parity(length=four)"), r"length=four: expected a whole number"),
    ((*TRAIN, "--task", "parity(length=4"), r"cannot read"),
    ((*TRAIN, "--model", "lsmt"), r"there is no mixer or preset 'lsmt'; did you mean 'lstm'\?"),
    ((*TRAIN, "--model", "attention(heads=3) @ 8"), r"heads=3: expected a divisor of the width, 8"),
    ((*TRAIN, "--method", "dat(mode=later)"), r"mode=later: expected skip \| freeze"),
    ((*TRAIN, "--method", "curriculum(from=900)"), r"from=900: expected a length from"),
    ((*TRAIN, "--seeds", "4-0"), r"seeds=4-0: expected numbers and ranges"),
    ((*TRAIN, "--seeds", "0,0"), r"seeds=\[0, 0\]: expected different whole numbers"),
    ((*TRAIN, "--lr", "0"), r"lr=0.0: expected a number > 0"),
    ((*TRAIN, "--steps", "0"), r"steps=0: expected a whole number >= 1"),
    ((*TRAIN, "--device", "tpu"), r"device=tpu: expected auto \| cpu \| cuda"),
    ((*TRAIN, "--out", "file"), r"cannot use file as a run folder"),
    ((*TRAIN, "--out", "long" * 100), r"cannot use (long)+ as a run folder: File name too long"),
    ((*TRAIN, "--out", "run"), r"run holds a run already: .*--overwrite"),
    ((*TRAIN, "--stop", "0.9"), r"stop=0.9: expected never or success"),
    (("resume", "run", "--seeds", "0"), r"out=none: expected a new folder .* --out run-seeds"),
    (("resume", "missing"), r"missing does not exist: expected the folder of a run\n"),
    (("show", "dat(latest=-1)"), r"latest=-1: expected"),
    (("show", "composite(modulus=1)"), r"modulus=1: expected"),
    (("eval", "missing"), r"missing does not exist: expected the folder of a run"),
    (("eval", "run", "--lengths"), r"lengths=: expected at least one multiple"),
    (("eval", "run", "--out", "no/dir/x.json"), r"out=no/dir/x.json: expected a file in a folder"),
    (("eval", "run", "--out", "run"), r"out=run: expected a file in a folder"),
    (("eval", "run", "--lengths", "0"), r"lengths=0.0: expected multiples"),
    (("eval", "run", "--lengths", "inf"), r"lengths=inf: expected multiples"),
    (("eval", "run", "--sequences", "0"), r"sequences=0: expected a whole number >= 1"),
    (("report", "missing"), r"missing: neither a run folder .* nor a study"),
    (("report",), r"folders=: expected at least one"),
    (("export", "missing", "new"), r"missing has no run.json: it is not a run folder"),
    (("export", "run", "new", "--seed", "7"), r"seed=7: run has the seeds 0, 1\n"),
    (("export", "run", "run"), r"run holds something else than an exported model"),
    (("export", "run", "file", "--overwrite"), r"file holds something else than an exported"),
    (("export", "run", ""), r'out="\.": expected the name of a folder'),
    (("reproduce", "dta"), r"there is no study 'dta'; did you mean 'dat'\?"),
    (("reproduce", "dat", "--arms", "jiont"), r"arms=jiont: no such arm; did you mean 'joint'\?"),
    (("reproduce", "dat", "--seeds", "x"), r"seeds=x: expected numbers and ranges"),
    (("reproduce", "dat", "--workers", "0"), r"workers=0: expected a whole number from 1 to 1,024"),
    (("bench", "tar"), r"name=tar: expected tra \| seeds"),
    (("bench", "tra", "--sections", "speed"), r"sections=speed: expected forward"),
    (("bench", "tra", "--out", "no/dir/x.json"), r"out=no/dir/x.json: expected a file in a folder"),
    (("bench", "tra", "--out", "run"), r"out=run: expected a file in a folder"),
    (("bench", "seeds", "--out", "x.png"), r"out=x.png: expected .* its name ending in .json"),
    (("list", "foo"), r"kind=foo: expected all \| task \| mixer"),
    (("bench", "seeds", "--layout", "flat"), r"layout=flat: expected serial \| parallel"),
    (
        ("bench", "lstm", "--layout", "serial"),
        "--layout serial cannot be combined with outlast bench lstm",
    ),
    (("bench", "lstm", "--run", "run"), "--run run cannot be combined with outlast bench lstm"),
    (
        ("bench", "tra", "--run", "run"),
        "--run run cannot be combined with .*: add --sections trained",
    ),
    (("bench", "tra", "--budget", "0"), r"budget=0.0: expected seconds > 0"),
    (("bench", "tra", "--budget", "nan"), r"budget=nan: expected seconds > 0"),
    (("bench", "tra", "--out", ""), r"out=\.: expected a file in a folder"),
    (("eval", "run", "--out", "run/run.json"), r"out=run/run.json: expected another name"),
    (("bench", "tra", "--out", "\0.json"), r"cannot write '\\x00.json': embedded null byte"),
    (("show", "attention(heads=2147483648)"), r"GiB of weights: expected no more than the .* free"),
    (("eval", "run", "--out", ""), r"out=\.: expected a file in a folder"),
    (("report", "run", "--out", ""), r'out="\.": expected the name of a folder'),
    (("reproduce", "dat", "--out", ""), r'out="\.": expected the name of a folder'),
    (("resume", "run", "--seeds", "0", "--out", ""), r'out="\.": expected the name of a folder'),
    ((*TRAIN, "--seeds", "0-999999999999"), r"seeds=0-999999999999: expected at most 100,000 of"),
    ((*TRAIN, "--seeds", "0-99999", "--model", "mlp @ 999"), r"seeds=100000 seeds: expected as ma"),
    ((*TRAIN, "--steps", "1" + "0" * 30), r"steps=10+: expected a whole number up to 1,000,000,"),
    ((*TRAIN, "--batch-size", "999999999999"), r"batch_size=999999999999: expected one whose data"),
    (
        (*TRAIN, "--task", "parity(length=999999999999)"),
        r"length=999999999999 \(int\): expected a w",
    ),
    ((*TRAIN, "--task", "recall(keys=999999999999)"), r"keys=999999999999: expected a number who"),
    ((*TRAIN, "--method", "random_positions(1" + "0" * 20 + ")"), r"range=10+: expected a whole n"),
    ((*TRAIN, "--model", "lstm @ 100000000000"), r"width=100000000000: expected a whole number up"),
    ((*TRAIN, "--model", "1000000 x (mlp) @ 8"), r"sublayers=1,000,000: expected at most 2,000"),
    ((*TRAIN, "--model", "(" * 999 + "mlp" + ")" * 999), r"expected at most 50 levels of brackets"),
    (
        (*TRAIN, "--out", "x\udcff"),
        r"out='x\\udcff': expected a name in UTF-8, or a --label for the plots",
    ),
    (("show", "task dat"), r"there is no task 'dat'"),
    (("show", "study", "dta"), r"there is no study 'dta'; did you mean 'dat'\?"),
    (("show", "stdy", "dat"), r"kind=stdy: expected task \| mixer"),
    (("show", "compsite"), r"there is nothing called 'compsite'; did you mean 'composite'\?"),
    (("show", "lstm > mpl"), r"there is no mixer or preset 'mpl'"),
    (("show", "composite(modulus=1)"), r"modulus=1: expected a whole number >= 2"),
    (("show", "attention(tra, weights=entmax)"), r"=entmax cannot be combined with scheme=tra"),
    (("show", "rope(scaling=yarn)"), r"scheme rope: original=none: expected the training length"),
    (("show", "entmax(alpha=1)"), r"weights entmax: alpha=1.0: expected a number > 1"),
]


def given_once(words: Sequence[str]) -> list[str]:
    """The words without the task, model and folder of `TRAIN` that others stand for."""
    kept: list[str] = []
    for index, word in enumerate(words):
        if word in TRAIN and word.startswith("--") and word in words[index + 1 :]:
            kept.append("")  # its value follows
        elif kept and kept[-1] == "":
            kept.pop()
        else:
            kept.append(word)
    return kept


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run and a file in it."""
    base = tmp_path_factory.mktemp("home")
    trained(tiny(steps=10, probe_every=0, checkpoint_every=10), base / "run")
    (base / "file").write_text("in the way")
    return base


@pytest.mark.parametrize(
    ("words", "message"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES]
)
def test_mistake_is_one_line_and_leaves_nothing(
    words: Sequence[str], message: str, home: Path, monkeypatch: pytest.MonkeyPatch, run: Shell
) -> None:
    monkeypatch.chdir(home)
    before = set(home.rglob("*"))
    code, _, error = run(*given_once(words))
    assert code == MISTAKE
    assert error.startswith("error: ")
    assert re.search(message, error), error
    if "cannot read" not in error:  # which shows the place under the line
        assert error.count("\n") == 1
    assert "Traceback" not in error
    assert {path for path in home.rglob("*") if path.name != LOCK} <= before


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((*TRAIN, "--steps", "many"), "--steps"),
        ((*TRAIN, "--precision", "fp8"), "--precision"),
        ((*TRAIN, "--setps", "3"), "--setps"),
        (("train", "--task", "parity"), "--model"),
        (("reproduce", "dat", "--scale", "large"), "large"),
        (("resume",), "outlast resume"),
    ],
)
def test_argument_that_cannot_be_parsed_is_named(
    words: Sequence[str], name: str, run: Shell
) -> None:
    code, out, err = run(*words)
    assert code == MISTAKE
    assert name in out + err
    assert "Traceback" not in out + err


def test_mistake_in_a_process_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    process = outlast("resume", "missing", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "error: missing does not exist: expected the folder of a run\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", (0,)), ("0-4", (0, 1, 2, 3, 4)), ("7,0-2", (7, 0, 1, 2)), (" 3 , 5 ", (3, 5))],
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize(
    ("seeds", "words"),
    [((), ""), ((3,), "3"), ((0, 1), "0, 1"), ((7, 0, 1, 2, 5, 4), "7, 0-2, 5, 4")],
)
def test_seeds_in_words_can_be_typed_again(seeds: tuple[int, ...], words: str) -> None:
    assert seed_words(seeds) == words
    if seeds:
        assert read_seeds(words) == seeds


@pytest.mark.parametrize(
    ("texts", "accepted"),
    [
        (("", "a", "1-", "-1", "3-1", "1,,2", "1.5", "1 2", "٣", "0-٣", "9" * 5000), "numbers and"),
        (("0-100000", "0-99999,7", "0-99999999999999999999"), "at most 100,000 of them"),
    ],
)
def test_bad_and_too_many_seeds_are_refused(texts: Sequence[str], accepted: str) -> None:
    assert len(read_seeds("0-99999")) == 100_000
    for text in texts:
        with pytest.raises(SpecError, match=rf"seeds={text[:200]}.*: expected {accepted}"):
            read_seeds(text)


# ---- train, resume, eval -----------------------------------------------------------------------

NUMBERS = ("--steps", "4", "--batch-size", "4", "--steps-per-block", "2", "--probe-every", "2")
SMALL = (
    "train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--out", "run",
    *NUMBERS, "--checkpoint-every", "2",
)  # fmt: skip


def test_run_is_replaced_only_with_overwrite(here: Path, run: Shell) -> None:
    assert run(*SMALL, "--seeds", "0-1", "--method", "ema(0.9)", "--method", "loss_order").code == 0
    record = read_run(Path("run"))
    assert (record.seeds, record.label) == ((0, 1), "run")
    assert [method.partition("(")[0] for method in record.methods] == ["ema", "loss_order"]
    before = Path("run", CHECKPOINT).read_bytes()
    refused = run(*SMALL, "--seeds", "5")
    assert refused.code == MISTAKE
    assert "--overwrite" in refused.err
    assert Path("run", CHECKPOINT).read_bytes() == before
    assert run(*SMALL, "--seeds", "5", "--overwrite", "--label", "the fifth").code == 0
    record = read_run(Path("run"))
    assert (record.seeds, record.label) == ((5,), "the fifth")


@pytest.mark.parametrize("join", [lambda *pair: pair, lambda *pair: ["=".join(pair)]])
def test_old_flags_set_the_renamed_settings(
    join: Callable[..., Sequence[str]], here: Path, run: Shell
) -> None:
    values = {"batch": 3, "clip": 0.5, "block": 2, "probe": 4, "checkpoint": 2, "together": 1}
    assert values.keys() == RENAMED.keys()
    flags = [word for old, value in values.items() for word in join(f"--{old}", str(value))]
    assert run(*SMALL[:7], "--steps", "2", *flags).code == 0
    settings = read_run(Path("run")).settings
    assert {old: getattr(settings, new) for old, new in RENAMED.items()} == values
    refused = run("resume", "run", *join("--together", "-1"))
    assert refused.err == "error: seeds_at_once=-1: expected a number >= 0\n"
    assert run("resume", "run", *join("--together", "1")).code == 0


def test_eval_shows_a_table_and_out_leaves_the_results_of_the_run(here: Path, shown: Shell) -> None:
    model = "attention(learned(ceiling=16), heads=2) @ 8"
    results = trained(tiny(model=model, steps=10, probe_every=0), here / "run") / RESULTS
    text = shown("eval", "run", "--lengths", "1", "3", "--sequences", "16").out
    first, second = [x.split() for x in text.splitlines() if re.match(r" *\d+ +\d x", x)]
    joint = [r["exact"]["joint"] for r in read_results(results).rows if r["multiple"] == 1]
    assert first[:5] == ["4", "1", "x", f"{sum(joint) / 2:.3f}", f"{min(joint):.3f}"]
    assert second[:4] == ["12", "3", "x", "n/a"]

    before = results.read_bytes()
    shown("eval", "run", "--lengths", "2", "--sequences", "16", "--out", "far.json")
    assert results.read_bytes() == before
    assert {row["multiple"] for row in json.loads(Path("far.json").read_text())["rows"]} == {2.0}


@pytest.mark.parametrize("terminal", [True, False])
def test_eval_shows_the_length_being_tested_on_a_terminal_alone(
    here: Path, run: Shell, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tiny(task="parity(length=4)", model="lstm @ 8", steps=10, probe_every=0), here / "run")
    console = Console(force_terminal=terminal, width=120, color_system=None)
    monkeypatch.setattr("outlast.cli.common.console", console)
    updates: list[str] = []
    monkeypatch.setattr(Status, "update", lambda _, words: updates.append(words))
    result = run("eval", "run", "--lengths", "1", "3", "--sequences", "16")
    assert result.code == 0
    lengths = ["testing length 4 (1 x)", "testing length 12 (3 x)"]
    assert updates == (lengths if terminal else [])
    assert ("testing" in result.out) == terminal


def test_train_echoes_what_was_typed(here: Path, shown: Shell) -> None:
    text = shown(
        *SMALL[:3], "--model", "4 x (lstm(init=default)) @ 8", "--out", "run", *NUMBERS
    ).out
    assert text.startswith("4 x (lstm(init=default)) @ 8  (")
    assert "\non parity(length=4), seeds 0, cpu\n" in text


def test_resume_says_from_which_step(here: Path, shown: Shell) -> None:
    create(tiny(task="parity(length=4)", model="lstm @ 8", steps=40), here / "run")
    text = shown("resume", "run").out
    assert text.startswith("lstm @ 8  (")
    assert "starts from step 0 of 40: it has no checkpoint yet\n" in text
    create(tiny(seeds=(4, 5, 6), steps=40), here / "half")
    with open_trainer([here / "half"], CPU) as trainer:
        trainer.runs[0].parked[1] = 10
        trainer.train(blocks=2)
        trainer.save([0])
    text = shown("resume", "half").out
    assert "goes on from step 10 of 40; seed 5 diverged and will rest\n" in text
    assert "is trained: step 40 of 40\n" in shown("resume", "half").out


def test_resume_says_only_the_error_if_the_checkpoint_is_lost(here: Path, run: Shell) -> None:
    folder = trained(tiny(steps=10, probe_every=0), here / "run")
    (folder / RESULTS).write_text("{}")
    (folder / CHECKPOINT).unlink()
    result = run("resume", "run")
    assert result.code == MISTAKE
    assert "has results but no checkpoint.safetensors" in result.err
    assert result.out == ""


def test_smaller_eval_says_first_what_it_replaces(home: Path, here: Path, shown: Shell) -> None:
    shutil.copytree(home / "run", here / "run")
    text = shown("eval", "run", "--lengths", "1", "2", "3", "--sequences", "16").out
    assert PREVIOUS_RESULTS not in text
    text = shown("eval", "run", "--lengths", "1", "3", "--sequences", "8").out
    first_line, _, table = text.partition("\n")
    assert "(lengths 1 2 3, 16 sequences each) is kept as run/results-before.json" in first_line
    assert "worst seed" in table


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("eval", "run"), "run/results.json"),
        (("eval", "run", "--out", "x.json"), "x.json"),
        (("bench", "tra", "--sections", "cpu", "--out", "x.json"), "x.json"),
    ],
    ids=["eval", "eval --out", "bench"],
)
def test_file_that_cannot_be_written_is_an_error_before_the_work(
    words: Sequence[str], file: str, home: Path, monkeypatch: pytest.MonkeyPatch, run: Shell
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.chdir(home)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr("outlast.workflow.evaluate.evaluate_run", None)
    # a bench that begins says so
    assert run(*words) == (MISTAKE, "", f"error: cannot write {file}: Permission denied\n")


def test_folder_in_the_place_of_the_results_is_an_error_before_the_work(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Shell
) -> None:
    monkeypatch.setattr("outlast.workflow.evaluate.evaluate_run", None)
    shutil.copytree(home / "run", tmp_path / "run")
    (tmp_path / "run" / RESULTS).mkdir()
    refused = run("eval", tmp_path / "run")
    assert refused.code == MISTAKE
    assert "results.json: Is a directory\n" in refused.err


def test_resume_finishes_a_test_that_was_stopped(
    here: Path, monkeypatch: pytest.MonkeyPatch, run: Shell
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("outlast.workflow.train.evaluate_run", stop)
        stopped = run(*SMALL)
    assert stopped.code == STOPPED
    message = "\ntesting\nstopped while testing; finish it with: outlast resume run\n"
    assert stopped.out.endswith(message)
    assert not Path("run", RESULTS).exists()
    finished = run("resume", "run")
    assert finished.code == 0
    assert "\ntesting\n" in finished.out
    assert "left" not in finished.out, "it was trained before"
    assert Path("run", RESULTS).exists()
