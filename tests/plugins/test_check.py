"""`outlast check` on items of another package: good ones pass, each fault is found by its rule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bad_items import FAULTS
from plug_in_package import GOOD, PACKAGE

import outlast
from outlast.cli import main
from outlast.cli.exit_codes import FAILED, MISTAKE
from outlast.errors import OutlastError, SpecError
from outlast.testing import NotApplicable, Violation, check
from outlast.testing.checking import _SETS, BUILT, RUN
from outlast.testing.rules import Rule, require

pytestmark = pytest.mark.usefixtures("_installed")
#: what an item needs on its line
LINES = {"OneBadOption": "OneBadOption(size=4)"}


@pytest.mark.parametrize(
    ("kind", "name"), [*(row[:2] for row in GOOD), ("study", "good_study")], ids=str
)
def test_good_item_passes_every_rule(kind: str, name: str) -> None:
    report = check(name)
    assert report.passed, str(report)
    assert (report.kind, report.source) == (kind, PACKAGE)
    statuses = [result.status for result in report.by_rule()]
    assert statuses.count("passed") >= 7
    report.raise_failures()


@pytest.mark.parametrize(("kind", "name"), list(FAULTS), ids=[name for _, name in FAULTS])
def test_fault_is_found_by_its_rule(kind: str, name: str) -> None:
    rule = FAULTS[kind, name]
    rules = [] if rule in (BUILT, RUN) else [rule]
    report = check(LINES.get(name, name), rules=rules)
    assert not report.passed, f"not found: {rule}"
    assert {failure.rule for failure in report.failures} == {rule}
    assert report.kind == kind
    with pytest.raises(Violation) as caught:
        report.raise_failures()
    assert rule in str(caught.value)
    assert "\n  fix: " in str(caught.value)
    if rules:
        assert "\n  why: " in str(caught.value)


@pytest.mark.parametrize("rule", [rule for rules in _SETS for rule in rules], ids=lambda r: r.name)
def test_every_rule_says_what_why_and_what_to_do(rule: Rule[object]) -> None:
    assert rule.text.endswith(".")
    assert "Why:" not in rule.text
    assert rule.why.endswith(".")
    assert rule.fix.endswith((".", '"'))


def test_options_that_the_line_leaves_open_are_tested() -> None:
    report = check("OneBadOption(size=4)", rules=["is causal"])
    assert [f.line for f in report.failures] == ["OneBadOption(size=4, see=all)"]
    assert check("OneBadOption(4, see=past)", rules=["is causal"]).passed
    assert not check("OneBadOption(4, see=all)", rules=["is causal"]).passed


def test_rule_that_does_not_apply_is_reported_with_the_reason() -> None:
    report = check("first", rules=["variants fit a model of the task"])
    assert report.passed
    assert report.by_rule()[-1].status == "not applicable"
    assert report.by_rule()[-1].reason == "it has no variants"


# ---- the line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("averge", None, "there is nothing called 'averge'; did you mean 'average'?"),
        ("averge", "mixer", "there is no mixer 'averge'; did you mean 'average'?"),
        ("average", "task", "there is no task 'average'; there is one among the mixers"),
        ("average", "thing", "kind=thing: expected task | mixer"),
        ("OneBadOption", None, "mixer OneBadOption needs a value for size"),
        ("OneBadOption(four)", None, "size=four: expected a whole number"),
        ("window(size=0)", None, "size=0: expected a whole number >= 1"),
        ("twice", None, "'twice' is the name of several items: say which kind: task | study"),
        ("average(", None, "cannot read the spec"),
    ],
)
def test_wrong_line_is_refused(line: str, kind: str | None, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(line, kind)
    assert says in str(caught.value)


def test_unknown_rule_is_refused_with_the_closest() -> None:
    with pytest.raises(SpecError, match="there is no rule 'causal'; did you mean 'is causal'"):
        check("average", rules=["causal"])


def test_item_that_cannot_be_imported_names_its_package() -> None:
    for kind in (None, "mixer"):
        with pytest.raises(OutlastError) as caught:
            check("gone", kind)
        assert "mixer 'gone' of the plug-in second-package" in str(caught.value)
        assert "No module named 'a_module_that_is_not_there'" in str(caught.value)


def test_kind_decides_between_items_of_one_name() -> None:
    rules = ["parts have usable names", "has a demo and a larger scale"]
    assert check("twice", "task", rules).kind == check("twice", "tasks", rules).kind == "task"
    assert check("twice", "study", rules).kind == "study"


# ---- the command line --------------------------------------------------------------------------


def test_command_prints_a_table_and_its_exit_code_is_the_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "average", "--rules", "is causal"]) == 0
    shown = capsys.readouterr().out
    assert "average  (mixer, from second-package)" in shown
    assert "is causal     passed" in shown
    assert main(["check", "mixer", "SeesLaterTokens", "--rules", "is causal"]) == FAILED == 1
    shown = capsys.readouterr().out
    assert "is causal     failed" in shown
    assert "tokens from 1 on change the output of earlier tokens" in " ".join(shown.split())
    assert "fix: Let token t use tokens up to t alone" in shown
    assert main(["check", "averge"]) == MISTAKE == 2
    assert "did you mean 'average'?" in capsys.readouterr().err
    assert main(["check", "a", "b", "c"]) == MISTAKE
    assert "item=a b c: expected a name or a line" in capsys.readouterr().err


def test_command_finds_the_package_in_a_new_process(site: Path) -> None:
    source = Path(outlast.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "outlast", "check", "first"],
        env={"PYTHONPATH": f"{source}:{site}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first  (task, from second-package)" in done.stdout
    assert "no rule is broken" in done.stdout


# ---- rules -------------------------------------------------------------------------------------


def test_result_of_a_rule_is_passed_failed_or_not_applicable() -> None:
    def sign(number: int) -> None:
        """Numbers are positive."""
        if number == 0:
            raise NotApplicable("it has no sign")
        require(number > 0, "it is negative")
        1 / (number - 5)

    rule = Rule(sign)
    outcomes = [(rule.result(n, "n").status, rule.result(n, "n").reason) for n in (1, -1, 0, 5)]
    assert outcomes == [
        ("passed", ""),
        ("failed", "it is negative"),
        ("not applicable", "it has no sign"),
        ("failed", "it raised ZeroDivisionError: division by zero"),
    ]
    rule(0)
    with pytest.raises(Violation, match="it is negative"):
        rule(-1)
