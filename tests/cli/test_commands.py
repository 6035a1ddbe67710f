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
import torch

from outlast import api
from outlast.cli import MISTAKE, STOPPED, VERBS, main
from outlast.cli.common import read_seeds, seed_words
from outlast.errors import SpecError, bad_value
from outlast.mixers import Mixer
from outlast.registry import KINDS, Entry
from outlast.runs.folder import CHECKPOINT, METRICS, PREVIOUS_RESULTS, RESULTS, RUN
from tiny_runs import outlast, tiny, trained

#: the order in which one example can use what another left
ORDER = ("list", "show", "train", "resume", "eval", "report", "reproduce", "bench", "doctor")


def example(verb: str) -> list[str]:
    """The words after ``outlast`` in the verb's own example."""
    function = importlib.import_module(f"outlast.cli.{verb}_").main
    found = re.findall(r"^\s*Example: outlast (.+)$", function.__doc__, re.MULTILINE)
    assert len(found) == 1, f"{verb} has {len(found)} examples"
    return shlex.split(found[0])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, on one line: tables and boxes break lines where it suits them."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())


# ---- help and examples -------------------------------------------------------------------------


def test_every_verb_has_its_place_in_the_order() -> None:
    assert sorted(ORDER) == sorted(VERBS)
    files = Path(importlib.import_module("outlast.cli").__file__ or "").parent.glob("*_.py")
    assert {f.stem.rstrip("_") for f in files if f.stem != "__init__"} == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    text = said(capsys)
    assert f"usage: outlast {verb}" in text
    assert f"Example: outlast {verb}" in text


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = said(capsys)
    assert all(re.search(rf"\b{verb}\b", text) for verb in VERBS)


def test_the_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in ORDER:
        words = example(verb)
        assert words[0] == verb
        assert main(words) == 0, capsys.readouterr().err
        assert capsys.readouterr().out.strip(), f"{verb} says nothing"
    folder = tmp_path / "runs" / "parity"
    assert {RUN, METRICS, CHECKPOINT, RESULTS} <= {p.name for p in folder.iterdir()}
    assert json.loads((folder / RESULTS).read_text())["sequences"] == 500
    assert (folder / "report" / "index.html").stat().st_size > 1000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


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
    (("resume", "missing"), r"missing has no run.json: it is not a run folder\n"),
    (("show", "dat(latest=-1)"), r"latest=-1: expected"),
    (("show", "composite(modulus=1)"), r"modulus=1: expected"),
    (("eval", "missing"), r"missing has no run.json: it is not a run folder"),
    (("eval", "run", "--lengths"), r"lengths=: expected at least one multiple"),
    (("eval", "run", "--out", "no/dir/x.json"), r"out=no/dir/x.json: expected a file in a folder"),
    (("eval", "run", "--out", "run"), r"out=run: expected a file in a folder"),
    (("eval", "run", "--lengths", "0"), r"lengths=0.0: expected multiples"),
    (("eval", "run", "--lengths", "inf"), r"lengths=inf: expected multiples"),
    (("eval", "run", "--sequences", "0"), r"sequences=0: expected a whole number >= 1"),
    (("report", "missing"), r"missing: neither a run folder .* nor a study"),
    (("report",), r"folders=: expected at least one"),
    (("reproduce", "dta"), r"there is no study 'dta'; did you mean 'dat'\?"),
    (("reproduce", "dat", "--arms", "jiont"), r"arms=jiont: no such arm; did you mean 'joint'\?"),
    (("reproduce", "dat", "--seeds", "x"), r"seeds=x: expected numbers and ranges"),
    (("reproduce", "dat", "--workers", "0"), r"workers=0: expected a whole number >= 1"),
    (("bench", "tar"), r"name=tar: expected tra \| seeds"),
    (("bench", "tra", "--sections", "speed"), r"sections=speed: expected forward"),
    (("bench", "tra", "--out", "no/dir/x.json"), r"out=no/dir/x.json: expected a file in a folder"),
    (("bench", "tra", "--out", "run"), r"out=run: expected a file in a folder"),
    (("bench", "seeds", "--out", "x.png"), r"out=x.png: expected .* its name ending in .json"),
    (("bench", "seeds", "--layout", "flat"), r"layout=flat: expected serial \| parallel"),
    (("bench", "lstm", "--layout", "serial"), r"layout=serial: expected none for lstm"),
    (("bench", "lstm", "--run", "run"), r"run=run: expected none for lstm"),
    (("bench", "tra", "--run", "run"), r"run=run: expected none without --sections trained"),
    (("bench", "tra", "--budget", "0"), r"budget=0.0: expected seconds > 0"),
    (("show", "compsite"), r"there is nothing called 'compsite'; did you mean 'composite'\?"),
    (("show", "lstm > mpl"), r"there is no mixer or preset 'mpl'"),
    (("show", "composite(modulus=1)"), r"modulus=1: expected a whole number >= 2"),
    (("show", "attention(tra, weights=entmax)"), r"=entmax cannot be combined with scheme=tra"),
    (("show", "rope(scaling=yarn)"), r"scheme rope: original=none: expected the training length"),
    (("show", "entmax(alpha=1)"), r"weights entmax: alpha=1.0: expected a number > 1"),
]


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
def test_a_mistake_is_explained(
    words: Sequence[str],
    message: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    before = sorted(str(p) for p in home.rglob("*"))
    assert main(list(words)) == MISTAKE
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert re.search(message, text), text
    if "cannot read" not in text:  # which shows the place under the line
        assert text.count("\n") == 1
    assert "Traceback" not in text
    after = {p for p in map(str, home.rglob("*")) if not p.endswith(".lock")}
    assert after <= set(before), "a mistake leaves something behind"


@pytest.mark.parametrize(
    ("words", "about"),
    [
        ((*TRAIN, "--steps", "many"), "--steps"),
        ((*TRAIN, "--precision", "fp8"), "--precision"),
        ((*TRAIN, "--setps", "3"), "--setps"),
        (("train", "--task", "parity"), "--model"),
        (("list", "tasks"), "tasks"),
        (("reproduce", "dat", "--scale", "large"), "large"),
        (("resume",), "outlast resume"),
        ((), "subcommand"),
    ],
)
def test_what_cannot_be_parsed_is_named(
    words: Sequence[str], about: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == MISTAKE
    caught = capsys.readouterr()
    assert about in caught.out + caught.err
    assert "Traceback" not in caught.out + caught.err


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = outlast("resume", "missing", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: missing has no run.json: it is not a run folder\n"
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", (0,)), ("0-4", (0, 1, 2, 3, 4)), ("7,0-2", (7, 0, 1, 2)), (" 3 , 5 ", (3, 5))],
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize(
    ("seeds", "words"),
    [((), ""), ((3,), "3"), ((0, 1), "0, 1"), ((7, 0, 1, 2, 5, 4), "7, 0-2, 5, 4")],
)
def test_seeds_in_words(seeds: tuple[int, ...], words: str) -> None:
    assert seed_words(seeds) == words
    if seeds:
        assert read_seeds(words) == seeds


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "3-1", "1,,2", "1.5", "1 2", "٣", "0-٣", "9" * 5000]
)
def test_what_are_no_seeds(text: str) -> None:
    with pytest.raises(SpecError, match="seeds="):
        read_seeds(text)


@pytest.mark.parametrize("text", ["0-100000", "0-99999,7", "0-99999999999999999999"])
def test_too_many_seeds(text: str) -> None:
    assert len(read_seeds("0-99999")) == 100_000
    with pytest.raises(SpecError, match=f"seeds={text}: expected at most 100,000 of them"):
        read_seeds(text)


# ---- train, eval, overwrite --------------------------------------------------------------------

SMALL = (
    "train", "--task", "parity(length=4)", "--model", "lstm @ 8", "--steps", "4", "--batch-size", "4",
    "--steps-per-block", "2", "--probe-every", "2", "--checkpoint-every", "2", "--out", "run",
)  # fmt: skip


def test_a_run_is_replaced_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--seeds", "0-1", "--method", "ema(0.9)", "--method", "dat"]) == 0
    record = json.loads((tmp_path / "run" / RUN).read_text())
    assert record["seeds"] == [0, 1]
    assert [m.partition("(")[0] for m in record["methods"]] == ["ema", "dat"]
    assert record["label"] == "run"
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    capsys.readouterr()
    assert main([*SMALL, "--seeds", "5"]) == MISTAKE
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before
    assert main([*SMALL, "--seeds", "5", "--overwrite", "--label", "the fifth"]) == 0
    record = json.loads((tmp_path / "run" / RUN).read_text())
    assert (record["seeds"], record["label"]) == ([5], "the fifth")


def test_the_table_of_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tiny(model="attention(learned(ceiling=16), heads=2) @ 8", steps=10, probe_every=0)
    trained(run, tmp_path / "run")
    assert main(["eval", "run", "--lengths", "1", "3", "--sequences", "16"]) == 0
    out = capsys.readouterr().out
    first, second = [line.split() for line in out.splitlines() if " x" in line]
    assert first[:3] == ["4", "1", "x"]
    assert second[:4] == ["12", "3", "x", "n/a"]
    rows = json.loads((tmp_path / "run" / RESULTS).read_text())["rows"]
    joint = [r["exact"]["joint"] for r in rows if r["multiple"] == 1]
    assert first[3] == f"{sum(joint) / 2:.3f}"
    assert first[4] == f"{min(joint):.3f}"

    before = Path("run/results.json").read_bytes()
    far = ["eval", "run", "--lengths", "2", "--sequences", "16", "--out", "far.json"]
    assert main(far) == 0
    assert Path("run/results.json").read_bytes() == before
    assert {row["multiple"] for row in json.loads(Path("far.json").read_text())["rows"]} == {2.0}


def test_a_smaller_test_says_what_it_replaces_before_its_table(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "run", "--lengths", "1", "2", "3", "--sequences", "16"]) == 0
    assert PREVIOUS_RESULTS not in capsys.readouterr().out
    assert main(["eval", "run", "--lengths", "1", "3", "--sequences", "8"]) == 0
    told, _, table = capsys.readouterr().out.partition("\n")
    assert "(lengths 1 2 3, 16 sequences each) is kept as run/results-before.json" in told
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
def test_what_cannot_be_written_is_told_before_the_work(
    words: Sequence[str],
    file: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    def work(*_: object, **__: object) -> None:
        raise AssertionError("it was begun")

    monkeypatch.chdir(home)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr("outlast.evaluation.run.evaluate_run", work)
    monkeypatch.setitem(importlib.import_module("outlast.bench.tra.sections").SECTIONS, "cpu", work)
    assert main(list(words)) == MISTAKE
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"error: cannot write {file}: Permission denied\n")


def test_a_folder_in_the_place_of_the_results_is_told_before_the_work(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("outlast.evaluation.run.evaluate_run", None)
    shutil.copytree(home / "run", tmp_path / "run")
    (tmp_path / "run" / RESULTS).mkdir()
    assert main(["eval", str(tmp_path / "run")]) == MISTAKE
    assert "results.json: Is a directory\n" in capsys.readouterr().err


def test_the_final_test_is_told_and_one_that_was_stopped_is_finished_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def stop(*_: object, **__: object) -> None:
        assert capsys.readouterr().out.endswith("\ntesting\n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("outlast.cli.running.evaluate_run", stop)
        assert main([*SMALL]) == STOPPED
    told = "stopped while testing; finish it with: outlast resume run\n"
    assert capsys.readouterr().out == told
    assert not Path("run", RESULTS).exists()
    assert main(["resume", "run"]) == 0
    text = capsys.readouterr().out
    assert "\ntesting\n" in text
    assert "left" not in text, "it was trained before"
    assert Path("run", RESULTS).exists()


# ---- list and show -----------------------------------------------------------------------------


def test_list_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for registry in KINDS.values():
        for name in registry.names():
            (line,) = [x for x in lines if x.split()[:1] == [name]][:1] or [""]
            summary = registry.entry(name).summary
            assert summary
            assert summary.split()[0] in line, name


def test_list_says_where_an_item_of_another_package_is_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    KINDS["study"].register("borrowed", "another-package")(lambda: None)
    try:
        assert main(["list", "study"]) == 0
        assert "[from another-package]" in said(capsys)
    finally:
        del KINDS["study"]._entries["borrowed"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_list_one_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    shown = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "}
    assert set(KINDS[kind].names()) <= shown
    others = {n for k, r in KINDS.items() if k != kind for n in r.names()}
    assert not (others - set(KINDS[kind].names())) & shown


ITEMS = [(kind, name) for kind, registry in KINDS.items() for name in registry.names()]


@pytest.mark.parametrize(("kind", "name"), ITEMS)
def test_show_every_item(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    text = said(capsys)
    assert len(text) > 60
    if kind == "preset":
        assert "(model)" in text
    elif name not in [n for k, n in ITEMS[: ITEMS.index((kind, name))] if k != kind]:
        assert f"({kind})" in text
        for parameter in KINDS[kind].entry(name).parameters(KINDS[kind].caller_arguments):
            assert parameter.name in text


@pytest.mark.parametrize(
    "line", ["4 x (lstm > attention > mlp) @ 64", "lstm | gru @ 8", "serial @ 32", "lstm @ 8"]
)
def test_show_a_model_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", line]) == 0
    text = said(capsys)
    assert "(model)" in text
    assert "in all" in text
    assert "recurrent" in text


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("attention(tra, weights=entmax)", "{}"),
        ("attention(position_only, weights=scalable)", "{}"),
        ("attention(rope(scaling=yarn))", "{}"),
        ("attention(heads=0)", "{}"),
        ("mlp(expand=0)", "{}"),
        ("tra(gate=none, distance=plain)", "attention({})"),
        ("rope(scaling=yarn)", "attention({})"),
        ("dape(rope)", "attention({})"),
        ("entmax(alpha=1)", "attention(weights={})"),
        ("topk(k=0)", "attention(weights={})"),
    ],
)
def test_show_refuses_what_training_refuses_in_the_same_words(
    spec: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SpecError) as refused:
        api.model(line.format(spec), "parity")
    assert main(["show", spec]) == MISTAKE
    shown = capsys.readouterr()
    assert shown.out == ""
    outer = "" if line == "{}" else "mixer attention: "
    assert str(refused.value) == outer + shown.err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    "spec",
    ["attention(heads=3)", "attention(rope, heads=129)", "attention(tra, heads=1000000)"],
)
def test_show_takes_heads_that_are_right_at_some_width(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", spec]) == 0
    assert spec in said(capsys)


def test_show_of_an_item_that_wants_numbers_to_begin_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Drawn(Mixer):
        """Needs a number in its constructor."""

        pathway = "pointwise"

        def __init__(self, width: int, keep: float = 1.0) -> None:
            super().__init__()
            self.first = torch.randn(width).tolist()[0]
            if keep < 0:
                raise bad_value("keep", keep, "a number >= 0")

    monkeypatch.setitem(KINDS["mixer"]._entries, "drawn", Entry("drawn", Drawn, "the test"))
    assert main(["show", "drawn(keep=0.5)"]) == 0
    assert "keep 0.5 a number" in said(capsys)
    assert main(["show", "drawn(keep=-1)"]) == MISTAKE
    assert capsys.readouterr().err == "error: mixer drawn: keep=-1.0: expected a number >= 0\n"


def test_show_names_the_kind_that_an_argument_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "attention"]) == 0
    text = said(capsys)
    assert "scheme nope a scheme such as name(argument=value)" in text
    assert "weights softmax weights such as name(argument=value)" in text
    assert main(["show", "dape(alibi)"]) == 0
    assert "scheme alibi a scheme such as name(argument=value)" in said(capsys)
    assert main(["show", "loss_order"]) == 0
    assert "a number or a spec such as name(argument=value)" in said(capsys)


def test_show_a_task_draws_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "composite(modulus=3, layout=chained)"]) == 0
    text = said(capsys)
    assert "layout chained" in text
    assert "modulus 3" in text
    assert "asks: state, recall, helped by running" in text
    assert "an example of length 4" in text


# ---- nothing heavy until it is used ------------------------------------------------------------


def modules_after(code: str) -> set[str]:
    """What is loaded after some lines of Python in a fresh process."""
    ending = "\nimport sys; sys.stderr.write('|'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + ending], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split("|"))


def test_importing_outlast_loads_nothing_heavy() -> None:
    loaded = modules_after("import outlast; dir(outlast); outlast.OutlastError")
    assert "outlast" in loaded
    assert not {"torch", "numpy", "matplotlib", "rich", "tyro", "jinja2"} & loaded


def test_list_does_not_load_torch() -> None:
    loaded = modules_after("from outlast.cli import main; main(['list'])")
    assert "outlast.registry" in loaded
    assert not {"torch", "numpy", "matplotlib", "jinja2"} & loaded


def test_every_name_of_the_package_can_be_used_more_than_once() -> None:
    """Neither is hidden by a package of its name once that is imported."""
    code = (
        "import outlast, inspect\n"
        "for name in outlast.__all__ * 2:\n"
        "    thing = getattr(outlast, name)\n"
        "    assert name == '__version__' or callable(thing), name\n"
        "import outlast.evaluation.run, outlast.reporting.page, outlast.train.session\n"
        "for name in outlast.__all__:\n"
        "    assert name == '__version__' or callable(getattr(outlast, name)), name\n"
        "assert 'sequences' in inspect.signature(outlast.evaluate).parameters\n"
        "assert 'folders' in inspect.signature(outlast.report).parameters\n"
    )
    assert "outlast.evaluation.ladder" in modules_after(code)


def test_an_unknown_name_of_the_package() -> None:
    import outlast as package

    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        _ = package.evalute


@pytest.mark.parametrize("words", [("--help",), ("doctor",)])
def test_python_dash_m(words: tuple[str, ...]) -> None:
    done = outlast(*words)
    assert done.returncode == 0, done.stderr
    assert "outlast" in done.stdout


def test_doctor_counts_the_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("outlast.machine.cores", lambda: 3)
    assert main(["doctor"]) == 0
    assert "3 cores to use, torch has 1 threads" in capsys.readouterr().out


@pytest.mark.parametrize("there", [False, True], ids=["no GPU", "a GPU"])
def test_doctor_says_which_lstm_serves_which_widths(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert main(["doctor"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    if there:
        assert "weights on chip up to width 128, read at every step up to 256" in said
        assert "lstm of one seed cuDNN up to width 128" in said
    else:
        assert "lstm a time loop" in said


def test_the_script_is_this_function() -> None:
    (script,) = entry_points(group="console_scripts", name="outlast")
    loaded: Callable[..., int] = script.load()
    assert loaded is main
