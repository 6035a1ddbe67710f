"""What every mixer, every scheme, all weights and every preset must hold to."""

from subjects import (
    ATTENTION,
    MIXERS,
    MODELS,
    PLAIN_ATTENTION,
    ROW_BY_ROW,
    SCHEMES,
    WEIGHTS,
    each,
    of,
)

from outlast.registry import mixers, presets, schemes, weightings
from outlast.testing import attention
from outlast.testing import mixers as rules

#: what the blocks of attention could change
IN_BLOCKS = [
    rules.chunks_equal_the_whole,
    rules.is_causal,
    rules.stacked_seeds_equal_each_seed_alone,
    rules.gradients_are_finite,
    *attention.RULES,
]


@of(MIXERS + ATTENTION)
@each([*rules.MIXER_RULES, *rules.RULES])
def test_mixer_conforms(subject, rule):
    rule(subject)


@of(MODELS)
@each([*rules.PRESET_RULES, *rules.RULES])
def test_preset_conforms(subject, rule):
    rule(subject)


@of(ATTENTION)
@each(attention.RULES)
def test_attention_conforms(subject, rule):
    rule(subject)


@of(ROW_BY_ROW)
@each(IN_BLOCKS)
def test_attention_conforms_row_by_row(subject, rule):
    rule(subject)


@of([subject for subject in ATTENTION if subject.line in PLAIN_ATTENTION])
@each(attention.COMPILED_RULES)
def test_compiled_attention_conforms(subject, rule):
    rule(subject)


@of(SCHEMES)
@each(attention.SCHEME_RULES)
def test_scheme_conforms(subject, rule):
    rule(subject)


def test_every_registered_item_is_a_subject():
    tested = {subject.line.partition("(")[0] for subject in MIXERS + MODELS}
    assert tested == {*mixers.names(), *presets.names()}
    for registry, lines in ((schemes, SCHEMES), (weightings, WEIGHTS)):
        assert {line.partition("(")[0] for line in lines} == set(registry.names())
    attentions = {subject.line for subject in ATTENTION}
    assert set(PLAIN_ATTENTION) <= attentions
    assert {"lstm", "gru", "mlp", "attention", "serial", "parallel"} <= tested
    assert {"rope", "learned"} <= set(SCHEMES)
