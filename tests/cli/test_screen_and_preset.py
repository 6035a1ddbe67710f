"""A study with a screen through the command line, and a whole training in one word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from shell import Shell

from outlast.cli.exit_codes import MISTAKE, STOPPED
from outlast.cli.presets import with_preset
from outlast.errors import SpecError
from outlast.models.build import canonical_layout
from outlast.registry import methods, mixers, presets, studies
from outlast.runs.records import read_run
from outlast.runs.spec import RunSpec
from outlast.runs.study import read_study
from outlast.studies import Arm, Claim, Screen, Study
from outlast.studies.joining import with_item
from outlast.sweep.halving import Halving
from tiny_runs import SETTINGS, TASK, start_processes_at_once, tiny

RECIPE = replace(tiny(steps=10, probe_every=0, checkpoint_every=5), label="recipe")
JOINING = ("gru", "minlstm")


def screening(scale: Literal["demo", "full"] = "demo", with_: tuple[str, ...] = ()) -> Study:
    """Three candidates and one more arm, in seconds."""
    arms = [Arm("recipe", RECIPE), Arm("dat", replace(RECIPE, methods=("dat",), label="DAT"))]
    for item in (*JOINING, *with_):
        arms.append(Arm(item, replace(with_item(RECIPE, item), label=item)))
    return Study(
        "screening", scale, "A screen in small", "Does it screen?", arms,
        [Claim("It scores something", "dat", 3, "us", low=0.0)], (1, 3), 64,
        default=("screen", "dat"),
        screen=Screen(
            ("recipe", *JOINING, *with_), Halving(at=3.0, rounds=2, keep=0.6, steps=0.5),
            seeds=(100, 101), steps=1.0, survivors=1,
        ),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    start_processes_at_once(monkeypatch)
    monkeypatch.setattr("outlast.studies.estimate.BUDGET", 0.0)
    studies.register("screening", "a test")(screening)
    presets.register("tiny_training", "a test")(tiny_training)
    yield
    del studies._entries["screening"], presets._entries["tiny_training"]


def tiny_training() -> RunSpec:
    """A training of seconds."""
    return RunSpec(
        TASK, "lstm > attention(heads=2) > mlp", ("dat(switch=5)",),
        settings=replace(SETTINGS, steps=10, probe_every=0, checkpoint_every=5, by_length=True),
    )  # fmt: skip


# ---- a screen ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_screen_is_carried_out_once_and_its_survivors_are_trained(
    here: Path, run: Shell, shown: Shell
) -> None:
    command = ["reproduce", "screening", "--device", "cpu", "--workers", "2", "--out", "study"]
    dry = shown(*command, "--dry").line
    assert "round 1: 3 runs of 1 seed and 5 steps" in dry
    assert "round 2: 2 runs of 2 seeds and 10 steps" in dry
    assert list(here.iterdir()) == []

    text = shown(*command).out
    folder = here / "study"
    record = read_study(folder)
    screen = record.screen
    assert screen is not None
    assert [(made.seeds, made.steps, len(made.scores)) for made in screen.rounds] == [
        (1, 5, 3), (2, 10, 2),
    ]  # fmt: skip
    (survivor,) = screen.survivors
    assert f"over all seeds of the study: {survivor}" in text
    assert {arm.name for arm in record.arms} == {"dat", survivor}
    assert read_run(folder / survivor).seeds == (0, 1)
    assert read_run(folder / "screen" / "round2" / survivor).seeds == (100, 101)
    for page in ("index.html", "report.md"):
        shown_page = (folder / "report" / page).read_text()
        assert "The screen" in shown_page
        assert "round 2 (2 seeds, 10 steps)" in shown_page.replace("\\", "")
        assert "100, 101" in shown_page

    # given again, nothing is trained; other arms do not forget the screen
    before = {p: p.stat().st_mtime_ns for p in folder.glob("**/checkpoint*") if p.is_file()}
    shown(*command)
    shown(*command, "--arms", "dat")
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert read_study(folder).screen == screen
    assert {arm.name for arm in read_study(folder).arms} == {"dat", survivor}

    # another screen in its place is refused, and nothing is lost
    other = run(*command, "--with", "slstm(heads=2)")
    assert other.code == MISTAKE
    assert "is a screen of other candidates: it lacks slstm(heads=2)" in other.err
    assert "Give the same --with to go on with it, or choose another --out" in other.err
    assert len(other.err) < 400
    assert "--overwrite" in run(*command, "--overwrite").err
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.usefixtures("no_figures")
def test_screen_that_was_stopped_goes_on(
    here: Path, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "screening", "--arms", "screen", "--device", "cpu", "--out", "study"]
    with monkeypatch.context() as patched:
        patched.setattr("outlast.sweep.engine.signals", _AskedToStop)
        assert run(*command).code == STOPPED
    assert not (here / "study" / "study.json").exists()
    assert run(*command).code == 0
    assert read_study(here / "study").screen is not None


class _AskedToStop:
    """A signal that has come already."""

    def __enter__(self) -> list[int]:
        return [15]

    def __exit__(self, *_: object) -> None:
        pass


def test_item_for_a_study_without_a_screen_is_refused(run: Shell) -> None:
    refused = run("reproduce", "dat", "--with", "gru", "--dry")
    assert refused.code == MISTAKE
    assert "study dat has no argument 'with'" in refused.err
    refused = run("reproduce", "dat", "--scale", "full", "--dry")
    assert "scale=full: expected demo | paper" in refused.err


def test_own_item_is_among_the_candidates_of_reach(shown: Shell, here: Path) -> None:
    text = shown("reproduce", "reach", "--arms", "screen", "--with", "alibi", "--dry").out
    assert "a screen of 7 candidates" in text
    assert "candidate-with-alibi" in text
    assert list(here.iterdir()) == []


def test_examples_in_the_help_of_with_join_the_screen(
    shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mixers._entries, "my_recurrence", mixers.entry("slstm"))
    monkeypatch.setitem(methods._entries, "my_method", methods.entry("ema"))
    _, _, text = shown("reproduce", "--help").line.partition("An item of yours that joins")
    examples = re.findall(r'"(.+?)"', text.partition("may be given")[0].replace("│", ""))
    assert len(examples) == 3
    words = [word for example in examples for word in ("--with", " ".join(example.split()))]
    text = shown("reproduce", "reach", *words, "--dry").line
    assert "a screen of 9 candidates" in text
    assert re.search(r"candidate-gru .*?1,400 screen", text)
    assert "The longest tests: 2,048 rows of 165 tokens" in text


# ---- a preset ----------------------------------------------------------------------------------


def test_preset_gives_what_is_not_given() -> None:
    words = ["--preset", "tiny_training", "--out", "x"]
    whole = with_preset(words, ())
    assert whole[:4] == words
    assert whole[4:10] == ["--task", TASK, "--model", "lstm > attention(heads=2) > mlp",
                           "--method", "dat(switch=5)"]  # fmt: skip
    assert "--by-length" in whole
    flags = [*words, "--model=lstm", "--no-by-length", "--steps", "7", "--method", "ema"]
    added = with_preset(flags, ["batch_size"])[len(flags) :]
    assert added[:2] == ["--task", TASK]
    assert not {"--model", "--by-length", "--steps", "--method", "--batch-size"} & set(added)
    assert with_preset(["--task", "parity"], ()) == ["--task", "parity"]
    line = ["--preset", "serial", "--task", "parity"]
    assert with_preset(line, ()) == [*line, "--model", "serial"]
    line = line[:2]
    assert with_preset(line, ["task"]) == [*line, "--model", "serial"]
    with pytest.raises(SpecError, match=r"there is no preset 'raech'; did you mean 'reach'\?"):
        with_preset(["--preset=raech"], ())


def test_preset_that_is_a_model_line_is_no_task_and_no_second_model(run: Shell) -> None:
    refused = run("train", "--preset", "parallel", "--out", "x")
    assert refused.code == MISTAKE
    assert "preset=parallel: expected a preset that is a whole training: reach" in refused.err
    assert "(parallel is a model line: model=parallel)" in refused.err
    words = ["--preset", "serial", "--task", "parity", "--out", "x"]
    refused = run("train", *words, "--model", "lstm @ 8")
    assert refused.code == MISTAKE
    second = "model is given twice: --preset serial and"
    assert f"{second} --model lstm @ 8; give it once" in refused.err
    refused = run("sweep", *words, "--grid", "model=lstm @ 8,gru @ 8")
    assert f"{second} --grid model=...; give it once" in refused.err
    assert "usage" in run("train", "--preset", "parallel", "--help").out


def test_head_of_a_preset_is_widened_for_a_task_with_more_answers() -> None:
    def model(task: str) -> str:
        words = with_preset(["--preset", "reach(size=small)", "--task", task], ())
        return words[words.index("--model") + 1]

    assert model("composite(keys=9, length=8)").endswith("@ 64, head=10")
    assert model("parity").endswith("@ 64, head=2")


def test_preset_delays_attention_only_on_a_task_with_a_state() -> None:
    words = ["--preset", "reach", "--task"]
    assert "--method" in with_preset([*words, "parity"], ())
    assert "--method" not in with_preset([*words, "copy(length=5)"], ())


def test_preset_is_trained(here: Path, shown: Shell) -> None:
    words = ["--preset", "tiny_training", "--model", "tiny_training @ 8"]
    shown("train", *words, "--lr", "0.01", "--seeds", "3", "--out", "run")
    record = read_run(here / "run")
    assert (record.short.task, record.seeds) == (TASK, (3,))
    assert record.short.methods == ("dat(switch=5)",)
    assert record.short.model == "lstm > attention(heads=2) > mlp @ 8"
    assert (record.settings.lr, record.settings.steps) == (0.01, 10)


def test_preset_is_trained_without_its_method(
    here: Path, shown: Shell, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # creates the run, and does not train it
    monkeypatch.setattr("outlast.workflow.train.train_and_evaluate", lambda *_: None)
    words = ["train", "--preset", "tiny_training", "--method", "none"]
    shown(*words, "--out", "run")
    assert read_run(here / "run").methods == ()
    refused = run(*words, "--method", "ema", "--out", "other")
    assert refused.code == MISTAKE
    assert "--method none cannot be combined with --method ema" in refused.err
    assert not (here / "other").exists()


def test_sweep_takes_a_preset(here: Path, shown: Shell) -> None:
    words = ["sweep", "--preset", "tiny_training", "--out", "sweep", "--devices", "cpu", "--dry"]
    axes = ["--grid", "lr=0.01,0.02", "method=none,ema"]
    text = shown(*words, *axes).line
    assert "4 runs" in text
    assert "2 runs" in shown(*words, "--method", "none", *axes[:2]).line


def test_preset_is_explained_and_stands_for_its_model(shown: Shell) -> None:
    text = shown("show", "preset", "tiny_training").line
    assert "stands for: outlast train --task" in text
    assert "use: outlast train --preset tiny_training" in text
    assert "lstm > attention(heads=2) > mlp @ 128" in text


def test_preset_with_a_width_stands_alone_and_is_shown_on_its_task(shown: Shell) -> None:
    text = shown("show", "preset", "reach(size=small)").line
    assert "attention(heads=2, weights=scalable) > mlp) @ 64, head=2 (model)" in text
    assert "(batch, tokens, 2) on composite(modulus=2" in text
    assert str(canonical_layout("reach(size=small) @ 32")).endswith("@ 32, head=2")
    problem = "preset reach cannot be combined with other sublayers: it sets width=64, head=2"
    with pytest.raises(SpecError, match=problem):
        canonical_layout("reach(size=small) > mlp")
