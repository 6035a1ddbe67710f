"""Everything that is registered, a plug-in's items included, as subjects of the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from outlast.errors import SpecError
from outlast.registry import methods, mixers, presets, schemes, weightings
from outlast.testing import attention
from outlast.testing.rules import Rule
from outlast.testing.subjects import WIDTHS, Subject, every_line, plain_lines

WIDTH = attention.WIDTHS[0]
#: worth a test beyond the default and the options that are spelt out
MORE_ATTENTION = [
    "attention(rope(scaling=linear, factor=4), heads=2)",
    "attention(rope(scaling=ntk, factor=4), heads=2)",
    "attention(rope(scaling=yarn, factor=4, original=4), heads=2)",
    # of the length that no chunks may pass
    "attention(rope(scaling=ntk, factor=4, original=7, convention=transformers), heads=2)",
    "attention(rope(scaling=yarn, factor=4, original=7, convention=transformers), heads=2)",
    "attention(cope(positions=3), heads=2)",
    "attention(t5(buckets=4, distance=5), heads=2)",
    "attention(tra(threshold=none, distance=plain), heads=2)",
    "attention(tra(threshold=0.7, gate=none), heads=2)",
    "attention(tra(threshold=learned, sharpen=true, gate=key), heads=2)",
    "attention(heads=2, weights=topk(k=2))",
    "attention(heads=2, weights=entmax(alpha=1.3))",
    "attention(heads=2, weights=entmax(alpha=2))",
    "attention(rope, heads=2, weights=scalable)",
    "attention(alibi, heads=2, weights=doubly_normalised)",
    "attention(fire, heads=2, weights=asentmax)",
    "attention(forget, heads=2, weights=sink)",
    "attention(kerple, heads=2, weights=compositional)",
    "attention(learned(ceiling=40), heads=2, weights=entmax(alpha=learned))",
]


def _buildable(line: str) -> bool:
    try:
        mixers.build(line, width=WIDTH)
    except SpecError:
        return False
    return True


SCHEMES, WEIGHTS = plain_lines(schemes), plain_lines(weightings)
MIXERS = [Subject.mixer(line) for line in every_line(mixers)]
MODELS = [Subject(name, WIDTHS[0], whole_model=True) for name in presets.names()]
#: every scheme and all weights by default, then in their options; options that only go with others,
#: such as yarn with a length, are among MORE_ATTENTION
PLAIN_ATTENTION = [
    *(attention.scheme_layer(line) for line in SCHEMES),
    *(attention.weights_layer(line) for line in WEIGHTS),
]
OPTIONS = [attention.scheme_layer(line) for line in every_line(schemes)]
OPTIONS += [attention.weights_layer(line) for line in every_line(weightings)]
ATTENTION = [
    Subject(line, WIDTH)
    for line in dict.fromkeys([*PLAIN_ATTENTION, *filter(_buildable, OPTIONS), *MORE_ATTENTION])
]
ROW_BY_ROW = [Subject(s.line, s.width, row_by_row=True) for s in ATTENTION]
METHODS = every_line(methods)


def each(rules: Iterable[Rule[Any]]) -> pytest.MarkDecorator:
    """A test for each rule."""
    return pytest.mark.parametrize("rule", list(rules), ids=lambda rule: rule.name)


def of(subjects: Iterable[Any]) -> pytest.MarkDecorator:
    """A test for each subject."""
    return pytest.mark.parametrize("subject", list(subjects), ids=str)
