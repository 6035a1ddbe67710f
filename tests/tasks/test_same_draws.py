"""A seed draws the sequences that it always drew: runs of old are trained and tested on them."""

from hashlib import sha256

import pytest
import torch

import outlast

#: a task in its default options or others, and the digest of what it drew when it was new
DRAWN = {
    "composite": "e3307ff65fc13f1b",
    "composite(keys=40, queries=3)": "af57c05c905fea96",
    "composite(layout=chained, supervision=outcome)": "bcd1bd57a67ebfca",
    "composite(layout=interleaved, keys=40)": "cede6863d3bc1756",
    "recall": "7e5ad1cdbe8d95c1",
    "recall(keys=12, values=3, queries=2, length=9)": "1aff11f80c23dded",
    "modsum": "e807101f0fc99159",
    "modsum(modulus=7, supervision=outcome)": "bdf95762bd115d90",
    "parity": "eb09db90a76bbf86",
    "copy": "a526230938a7ba05",
    "flipflop": "4f73c31e9f977d7d",
    "entangled_parity": "c812622fa9b99496",
}


def digest(line: str) -> str:
    batch = outlast.task(line).sample((4, 12), 5, torch.Generator().manual_seed(7))
    tables = (batch.inputs, batch.targets, batch.part.long())
    return sha256(b"".join(table.numpy().tobytes() for table in tables)).hexdigest()[:16]


@pytest.mark.parametrize("line", DRAWN)
def test_seed_draws_what_it_always_drew(line: str) -> None:
    assert digest(line) == DRAWN[line]
