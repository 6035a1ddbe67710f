"""What every mixer, every scheme, all weights and every preset must hold to."""

from subjects import (
    ATTENTION,
    MIXERS,
    MODELS,
    PLAIN_ATTENTION,
    ROW_BY_ROW,
    SCHEMES,
    WEIGHTS,
    WIDTH,
    each,
    of,
)

from outlast.registry import mixers, presets, schemes, weightings
from outlast.testing import attention
from outlast.testing import mixers as rules
from outlast.testing.subjects import Subject

#: each scheme and all weights are among ATTENTION
OTHERS = [subject for subject in MIXERS if not subject.line.startswith("attention(")]
#: what the blocks of attention could change
IN_BLOCKS = [
    rules.chunks_equal_the_whole,
    rules.is_causal,
    rules.stacked_seeds_equal_each_seed_alone,
    rules.gradients_are_finite,
    *attention.RULES,
]


@of(OTHERS + ATTENTION)
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


def test_rule_about_compiled_code_does_not_apply_where_none_is_compiled():
    (rule,) = attention.COMPILED_RULES
    lines = ["attention(rope, heads=2)", "attention(cope, heads=2)"]
    results = [rule.result(Subject(line, WIDTH), line) for line in lines]
    assert [result.status for result in results] == ["not applicable", "passed"]
    assert "nothing is compiled" in results[0].reason


@of(SCHEMES)
@each(attention.SCHEME_RULES)
def test_scheme_conforms(subject, rule):
    rule(subject)


def test_every_registered_item_is_a_subject():
    tested = {subject.line.partition("(")[0] for subject in OTHERS + MODELS}
    assert tested == {*mixers.names(), *presets.names()}
    for registry, lines in ((schemes, SCHEMES), (weightings, WEIGHTS)):
        assert {line.partition("(")[0] for line in lines} == set(registry.names())
    attentions = {subject.line for subject in ATTENTION}
    assert set(PLAIN_ATTENTION) <= attentions
    assert {"lstm", "gru", "mlp", "attention", "serial", "parallel"} <= tested
    assert {"rope", "learned"} <= set(SCHEMES)
