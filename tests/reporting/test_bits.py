"""Bits per byte in a report: claims, table, sentences and figures say what the rows say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run

from outlast.errors import RunFolderError
from outlast.reporting.claims import FAILS, HOLDS, headline, judge
from outlast.reporting.load import read
from outlast.reporting.page import report
from outlast.reporting.summary import ArmSummary, summarise_arm
from outlast.reporting.tables import bits_table
from outlast.runs.study import Claim

MULTIPLES = (1, 4, 32)


def write_text_run(folder: Path, label: str, values: tuple[float, ...], **row: Any) -> Path:
    """A run on text: seed 1 needs a tenth of a bit more than seed 0."""
    write_run(folder, label=label, methods=(), evaluated=False, task="text(sotu)")
    record = json.loads((folder / "run.json").read_text())
    record["corpus"] = {"checksum": "abc", "baselines": {"zlib": 2.76}}
    (folder / "run.json").write_text(json.dumps(record))
    rows = [
        {
            "seed": seed, "variant": None, "length": 10 * m, "multiple": m, "exact": None,
            "bits": {"all": value + seed / 10, "recall": value - 1},
            "bytes": {"all": 90, "recall": 9},
            "positions": {"8": value + 1, str(10 * m): value},
        } | row
        for m, value in zip(MULTIPLES, values, strict=True)
        for seed in (0, 1)
    ]  # fmt: skip
    results = {"format": 1, "sequences": 64, "rows": rows}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    near = write_text_run(tmp_path / "rope", "RoPE", (2.0, 3.0, 5.0))
    return [near, write_text_run(tmp_path / "fox", "FoX", (2.2, 2.1, 2.05))]


@pytest.fixture
def arms(folders: list[Path]) -> list[ArmSummary]:
    (study,) = read(folders)
    return [summarise_arm(arm) for arm in study.arms]


def claim(arm: str, multiple: float, **band: Any) -> Claim:
    return Claim(f"{arm} {band}", arm, multiple, part="all", measure="bits", **band)


def test_claims_are_judged_in_bits(arms: list[ArmSummary]) -> None:
    verdicts = judge(
        [
            claim("rope", 1, statistic="max", high=2.76),
            claim("rope", 32, high=2.76),
            claim("fox", 32, statistic="difference", versus="rope", high=-1.0),
            claim("fox", 3, high=2.0),
        ],
        arms,
    )
    assert [v.verdict for v in verdicts] == [HOLDS, FAILS, HOLDS, "not measured"]
    assert [v.value for v in verdicts] == [2.1, 5.05, pytest.approx(-2.95), None]
    assert verdicts[0].expected == "≤ 2.76 bits per byte"
    assert verdicts[1].measured == "5.05 bits per byte"
    assert verdicts[2].measured == "−2.95 bits per byte"
    assert verdicts[2].detail == "2.10 − 5.05"


def test_headline_has_the_best_and_the_worst_at_the_longest_context(
    arms: list[ArmSummary],
) -> None:
    assert headline(arms, []) == (
        "With 32× the context of training, “FoX” needs 2.100 bits per byte (1×: 2.250), “RoPE” "
        "5.050 bits per byte (1×: 2.050)."
    )


def test_table_has_mean_and_spread_of_each_part(arms: list[ArmSummary]) -> None:
    table = bits_table(arms)
    assert table.columns == ("arm", "part", "bytes", "1×", "4×", "32×")
    cells = [[cell.text for cell in row] for row in table.rows]
    assert cells[0] == ["RoPE", "all", "90", "2.050", "3.050", "5.050"]
    assert cells[1] == ["RoPE", "recall", "9", "1.000", "2.000", "4.000"]
    assert table.rows[0][3].note == "[2.000, 2.100]"


def test_page_of_text_and_answers_has_both(folders: list[Path], tmp_path: Path) -> None:
    other = write_run(tmp_path / "dat", label="DAT")
    page = report([*folders, other], tmp_path / "page").read_text()
    text = (tmp_path / "page" / "report.md").read_text()
    assert "Bits per byte, lower is better" in text
    assert "Sequences entirely right" in text
    assert "“RoPE” 5.050 bits per byte (1×: 2.050). zlib takes 2.76." in text
    for name in ("bits", "bits-parts", "positions", "accuracy"):
        assert f'id="figure-{name}"' in page
        assert (tmp_path / "page" / "figures" / f"{name}.svg").is_file()


def test_bits_that_are_no_number_are_refused(tmp_path: Path) -> None:
    folder = write_text_run(tmp_path / "run", "RoPE", (2.0, 2.0, 2.0), bits={"all": float("nan")})
    with pytest.raises(RunFolderError, match=r"rows\[0\].bits.all=nan: expected a finite number"):
        read([folder])
