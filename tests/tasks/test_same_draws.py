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
    "composite(keys=6, key_tokens=2)": "c25a033c4a2ffe74",
    "composite(keys=4, key_tokens=2, repeat=latest)": "ce11925d93538e74",
    "recall(keys=12, length=9, fillers=2)": "46e326fdf7f1c2e8",
    "permutation": "6a51adfa223794d3",
    "needle": "5430f9fa9280feb3",
    "count(most=3)": "61eb007405341b02",
    "majority": "abc36f6577db8aab",
    "reverse": "a4ea060af0b3c772",
    "sort": "4820fa579906ad63",
    "addition": "4e5b79d9c8e414fd",
    "addition(order=reversed, hints=true)": "c7744a7a725ff308",
    "dyck": "7f551ca87c94d25c",
    "hierarchical_flipflop": "ab214af8b27b132a",
    "regular": "9bcf3b466c475399",
    "composite(group=S5, layout=interleaved, keys=40)": "0a85eb7d0f657f23",
    "regular(language=d4)": "0351ec8727c33b71",
    "regular(language=cycle_navigation)": "f59daaf29796ae9d",
}


def digest(line: str) -> str:
    batch = outlast.task(line).sample((4, 12), 5, torch.Generator().manual_seed(7))
    tables = (batch.inputs, batch.targets, batch.part.long())
    return sha256(b"".join(table.numpy().tobytes() for table in tables)).hexdigest()[:16]


@pytest.mark.parametrize("line", DRAWN)
def test_seed_draws_what_it_always_drew(line: str) -> None:
    assert digest(line) == DRAWN[line]
