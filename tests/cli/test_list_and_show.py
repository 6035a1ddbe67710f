"""`outlast list`, `outlast show` and `outlast doctor`: what there is, and what it takes."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch
from shell import Shell

from outlast import api
from outlast.cli.exit_codes import MISTAKE
from outlast.cli.explaining import accepted, meanings
from outlast.errors import SpecError, bad_value
from outlast.mixers import Mixer
from outlast.models.build import canonical_layout
from outlast.models.presets import preset_layout
from outlast.registry import KINDS, Entry, trackers
from outlast.runs.records import read_run
from outlast.specs import Spec
from outlast.tasks.composite import Composite
from tiny_runs import outlast


def test_list_shows_every_item_with_its_summary(shown: Shell) -> None:
    lines = shown("list").out.splitlines()
    for registry in KINDS.values():
        for name in registry.names():
            named = [x for x in lines if x.split()[:1] == [name]]  # several kinds may have it
            summary = registry.entry(name).summary
            assert summary
            assert any(summary.split()[0] in line for line in named), name


def test_list_says_where_an_item_of_another_package_is_from(shown: Shell) -> None:
    KINDS["study"].register("borrowed", "another-package")(lambda: None)
    try:
        assert "[from another-package]" in shown("list", "study").line
    finally:
        del KINDS["study"]._entries["borrowed"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_list_of_a_kind_shows_only_that_kind(kind: str, shown: Shell) -> None:
    lines = shown("list", kind).out.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    assert set(KINDS[kind].names()) <= listed
    others = {n for k, r in KINDS.items() if k != kind for n in r.names()}
    assert not (others - set(KINDS[kind].names())) & listed
    example = lines[-1].removeprefix("outlast show NAME tells more: outlast show ")
    assert example in KINDS[kind].names()


def test_trackers_are_listed_and_explained(shown: Shell) -> None:
    assert "trackers" in shown("list").line
    text = shown("list", "trackers").line
    for name in trackers.names():
        assert name in text
        page = shown("show", name).line
        assert f"use: outlast train ... --track {name}" in page
        assert f"install: pip install -e '.[{name}]' in a clone" in page
        for parameter in trackers.entry(name).parameters():
            assert parameter.name in page
    assert "offline" in shown("show", "wandb(mode=offline)").line
    assert "Event files" in shown("show", "tracker", "tensorboard").line


def test_list_takes_the_plural_of_a_kind(shown: Shell) -> None:
    assert shown("list", "tasks").out == shown("list", "task").out
    assert shown("list", "studies").out == shown("list", "study").out


def test_no_verb_shows_the_verbs() -> None:
    done = outlast()
    assert done.returncode == 0
    assert "reproduce" in done.stdout


ITEMS = [(kind, name) for kind, registry in KINDS.items() for name in registry.names()]


@pytest.mark.parametrize(("kind", "name"), ITEMS)
def test_show_names_kind_and_arguments_of_every_item(kind: str, name: str, shown: Shell) -> None:
    text = shown("show", name).line
    assert len(text) > 60
    if kind == "preset":
        assert "(preset)" in text
        assert "(model)" in text
    elif name not in [n for k, n in ITEMS[: ITEMS.index((kind, name))] if k != kind]:
        assert f"({kind})" in text
        for parameter in KINDS[kind].entry(name).parameters(KINDS[kind].caller_arguments):
            assert parameter.name in text


@pytest.mark.parametrize(("kind", "name"), ITEMS)
def test_show_says_what_every_argument_means_and_accepts(kind: str, name: str) -> None:
    registry = KINDS[kind]
    entry = registry.entry(name)
    parameters = entry.parameters(registry.caller_arguments)
    meaning = meanings(entry.factory)
    assert [p.name for p in parameters if not meaning.get(p.name, "").endswith(".")] == []
    unbounded = ("a number", "a whole number", "a number or none", "a whole number or none")
    without_range = [p.name for p in parameters if accepted(registry, entry, p) in unbounded]
    # any bias will do; the range of `original` is in its meaning, as it needs `scaling`
    assert set(without_range) <= {"forget_bias", "input_bias", "original"}


def test_ranges_come_from_the_checks(shown: Shell) -> None:
    text = shown("show", "composite").line
    assert "modulus 10 a whole number >= 2 The sum is taken modulo this number" in text
    assert "keys 1024 a whole number >= length=25" in text
    text = shown("show", "attention").line
    assert "dropout 0.0 a share from 0 to below 1 The share of logits" in text
    assert (
        "alpha 1.5 a number > 1 (1 is the softmax) and <= 4, or learned"
        in shown("show", "entmax").line
    )
    assert "latest none a step >= 0, or a share" in shown("show", "dat").line


@pytest.mark.parametrize(
    ("spec", "row"),
    [
        ("composite(key_tokens=2)", "keys 1024 a whole number >= 5 How many"),
        ("composite(repeat=latest)", "keys 1024 a whole number >= 2 How many"),
        ("composite(10, 8, length=9, key_tokens=2)", "key_tokens 2 a whole number from 2 to 13 "),
        ("recall(length=9)", "keys 128 a whole number >= length=9, as keys are distinct"),
        ("random_windows(from=3, to=5)", "to 5 a number of keys from from=3 on"),
    ],
)
def test_ranges_are_those_beside_the_other_arguments(spec: str, row: str, shown: Shell) -> None:
    assert row in shown("show", spec).line


def test_meanings_are_read_from_the_docstrings_of_a_class_and_its_bases() -> None:
    class Base:
        """A base.

        Args:
            first: What the base says
                on two lines.
            second: Another.

        Returns:
            third: Not an argument.
        """

    class Derived(Base):
        """Derived.

        Args:
            second: What is nearer wins.
            from_: A keyword.
        """

    assert meanings(Derived) == {
        "first": "What the base says on two lines.",
        "second": "What is nearer wins.",
        "from": "A keyword.",
    }


def test_arguments_tell_a_study_from_a_preset_of_its_name(shown: Shell) -> None:
    assert "reach  (preset)" in shown("show", "reach").out
    text = shown("show", "reach(scale=full)").out
    assert "(study)" in text
    assert "(preset)" not in text


@pytest.mark.parametrize("name", KINDS["preset"].names())
def test_show_of_a_preset_has_its_line_and_a_command_that_works(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, shown: Shell
) -> None:
    text = shown("show", "preset", name).out
    (line,) = re.findall("stands for: (.+?) use:", " ".join(text.split()))
    assert str(preset_layout(Spec(name))) in line
    (command,) = re.findall("^use: outlast (.+)$", text, re.MULTILINE)
    words = shlex.split(command)
    # creates the run, and does not train it
    monkeypatch.setattr("outlast.workflow.train.train_and_evaluate", lambda *_: None)
    shown(*words)
    assert read_run(Path(words[-1])).model == str(canonical_layout(name, full=True))


@pytest.mark.parametrize(("spec", "scale"), [("phase1", "demo"), ("dat(scale=paper)", "paper")])
def test_show_of_a_study_lists_arms_and_claims(spec: str, scale: str, shown: Shell) -> None:
    name = spec.partition("(")[0]
    study = KINDS["study"].entry(name).factory(scale=scale)
    result = shown("show", spec)
    for arm in study.arms:
        assert re.search(rf"^{re.escape(arm.name)}\*? ", result.out, re.MULTILINE), arm.name
    first_words = [claim.text.split()[0] for claim in study.claims]
    _, _, claims = result.out.partition("\nclaims\n")
    assert all(word in claims for word in first_words)
    assert claims.count(" x") >= len(study.claims)
    scale_words = "" if scale == "demo" else " --scale paper"
    assert f"use: outlast reproduce {name}{scale_words}\n" in result.out


@pytest.mark.parametrize(
    "line", ["4 x (lstm > attention > mlp) @ 64", "lstm | gru @ 8", "serial @ 32", "lstm @ 8"]
)
def test_show_of_a_model_line_lists_its_sublayers(line: str, shown: Shell) -> None:
    text = shown("show", line).line
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
    spec: str, line: str, run: Shell
) -> None:
    with pytest.raises(SpecError) as error:
        api.model(line.format(spec), "parity")
    code, out, err = run("show", spec)
    assert (code, out) == (MISTAKE, "")
    outer = "" if line == "{}" else "mixer attention: "
    assert str(error.value) == outer + err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    "spec",
    ["attention(heads=3)", "attention(rope, heads=129)", "attention(tra, heads=1000000)"],
)
def test_show_accepts_heads_that_are_right_at_some_width(spec: str, shown: Shell) -> None:
    assert spec in shown("show", spec).line


def test_show_builds_an_item_that_needs_numbers_in_its_constructor(
    monkeypatch: pytest.MonkeyPatch, shown: Shell, run: Shell
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
    assert "keep 0.5 a number" in shown("show", "drawn(keep=0.5)").line
    message = "error: mixer drawn: keep=-1.0: expected a number >= 0\n"
    assert run("show", "drawn(keep=-1)") == (MISTAKE, "", message)


def test_show_names_the_kind_of_an_argument(shown: Shell) -> None:
    text = shown("show", "attention").line
    assert "scheme nope a scheme such as nope" in text
    assert "weights softmax weights such as softmax" in text
    assert "scheme alibi a scheme such as kerple" in shown("show", "dape(alibi)").line
    switch = "a step >= 0, or a share of training >= 0 and < 1 or a spec such as below(0.01)"
    assert switch in shown("show", "loss_order").line


@pytest.mark.parametrize("words", [("study", "dat"), ("study dat",)])
def test_show_takes_the_kind_first(words: tuple[str, ...], shown: Shell) -> None:
    text = shown("show", *words).out
    assert text.startswith("dat  (study)")
    assert "(method)" not in text


def test_show_of_a_task_draws_an_example(shown: Shell) -> None:
    text = shown("show", "composite(modulus=3, layout=chained)").line
    assert "layout chained" in text
    assert "modulus 3" in text
    assert "asks: state, recall, helped by running" in text
    assert "an example of length 4" in text


@pytest.mark.parametrize("name", [n for n in KINDS["task"].names() if n != "text"])
def test_show_and_docstring_of_a_task_say_how_often_a_guess_is_right(
    name: str, shown: Shell
) -> None:
    page = shown("show", "task", name).line
    task = api.task(name)
    assert f"a guess is right in {100 * task.chance_level(task.asked[0]):.3g} % of answers" in page
    assert "A guess is right " in page


def test_show_names_the_parts_whose_chance_levels_differ(
    monkeypatch: pytest.MonkeyPatch, shown: Shell
) -> None:
    class Uneven(Composite):
        """A task of a plug-in whose parts are not guessed alike."""

        def chance_level(self, part: str) -> float:
            return 0.5 if part == "state" else super().chance_level(part)

    monkeypatch.setitem(KINDS["task"]._entries, "uneven", Entry("uneven", Uneven, "the test"))
    levels = "a guess is right in 50 % of state, 33.3 % of recall"
    assert levels in shown("show", "uneven(modulus=3)").line


# ---- doctor -----------------------------------------------------------------------------------


def test_doctor_counts_the_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, shown: Shell
) -> None:
    monkeypatch.setattr("outlast.machine.cores", lambda: 3)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert "3 cores to use, torch has 1 thread cuda" in shown("doctor").line
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert "3 cores to use, torch has 2 threads cuda" in shown("doctor").line


def test_doctor_names_a_package_of_every_extra(shown: Shell) -> None:
    text = shown("doctor").line
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text("utf-8"))["project"]["optional-dependencies"]
    for extra in set(extras) - {"dev", "docs", "trackers"}:  # the last is the sum of four
        names = [re.split(r"[^\w-]", requirement)[0] for requirement in extras[extra]]
        assert any(f" {name} " in text for name in names), f"doctor does not know {extra}"


@pytest.mark.parametrize("gpu", [False, True], ids=["no GPU", "a GPU"])
def test_doctor_says_which_lstm_serves_which_widths(
    gpu: bool, monkeypatch: pytest.MonkeyPatch, shown: Shell
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    text = shown("doctor").line
    if gpu:
        assert "weights on chip up to width 128, read at every step up to 256" in text
        assert "lstm of one seed cuDNN up to width 128" in text
    else:
        assert "lstm a time loop" in text
