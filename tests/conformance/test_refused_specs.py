"""A value that an item cannot take is refused by name: the field, the value, what is accepted."""

import re
from contextlib import nullcontext

import pytest

from outlast import registry
from outlast.cli.explaining import accepted, try_item
from outlast.errors import SpecError
from outlast.models import build_model
from outlast.specs import Spec
from outlast.tasks.composite import Composite
from outlast.tasks.modsum import ModSum

WIDTH = 8
#: what the caller sets beside the spec
SIZES = {"mixer": {"width": WIDTH}, "scheme": {"width": WIDTH, "heads": 2}}

TASKS = [
    ("modsum(modulus=1)", "modulus=1: expected a whole number >= 2"),
    ("modsum(length=1)", "length=1: expected a whole number >= 2"),
    ("modsum(supervision=none_at_all)", "supervision=none_at_all: expected outcome | aligned"),
    ("parity(length=0)", "length=0: expected a whole number >= 2"),
    ("entangled_parity(queries=-0.1)", "queries=-0.1: expected a number from 0 to 1"),
    ("entangled_parity(keys=10)", "keys=10: expected a whole number >= length=25"),
    ("permutation(group=S4)", "group=S4: expected S3 | S5 | A5"),
    ("count(length=8)", "most=9: expected at most length=8"),
    ("count(most=30)", "most=30: expected at most length=25"),
    ("needle(fillers=0)", "fillers=0: expected a whole number >= 1"),
    (
        "addition(hints=true, marks=10)",
        "marks=10: expected more than length=10: the sum has a digit",
    ),
    ("addition(order=backwards)", "order=backwards: expected plain | reversed"),
    ("dyck(k=1)", "k=1: expected a whole number >= 2"),
    ("dyck(depth=65)", "depth=65: expected a whole number from 2 to 64"),
    ("hierarchical_flipflop(length=7)", "length=7: expected an even number of tokens"),
    ("hierarchical_flipflop(levels=0)", "levels=0: expected a whole number from 1 to 64"),
    ("regular(language=tomita8)", "language=tomita8: expected tomita1 | tomita2 | "),
    (
        "regular(accepting=[1])",
        "accepting=[1]: expected nothing with language=tomita4; give it with language=own alone",
    ),
    ("regular(language=d2, length=25)", "length=25: expected a multiple of 2, as d2 has no words"),
    ("regular(language=abab, length=6)", "length=6: expected a multiple of 4, as abab has no"),
    ("regular(language=own)", "transitions=[]: expected 2 to 64 lists with a state each for the"),
    (
        "regular(language=own, transitions=[[1, 0], [0, 5]], accepting=[1])",
        "for the same 2 to 8 letters; a state is the number of a list, below 2 here",
    ),
    ("regular(language=own, transitions=[[0, 2], [0, 0]], accepting=[0])", "transitions=[[0, 2], "),
    ("regular(language=own, transitions=[[0, 0], [1, 1]], accepting=[1])", "accepting=[1]: expect"),
    ("recall(fillers=-1)", "fillers=-1: expected a whole number >= 0"),
    ("recall(values=1)", "values=1: expected a whole number >= 2"),
    ("recall(queries=0)", "queries=0: expected a whole number >= 1"),
    ("recall(keys=24)", "keys=24: expected a whole number >= length=25"),
    ("composite(modulus=1)", "modulus=1: expected a whole number >= 2"),
    ("composite(keys=8, length=9)", "keys=8: expected a whole number >= length=9"),
    ("composite(queries=0)", "queries=0: expected a whole number >= 1"),
    (
        "composite(key_tokens=0)",
        "key_tokens=0: expected a whole number from 1 to 4 with keys=1024 and length=25",
    ),
    (
        "composite(keys=4, key_tokens=2)",
        "key_tokens=2: expected a whole number from 3 to 20 with keys=4 and length=25",
    ),
    ("composite(key_tokens=5)", "key_tokens=5: expected a whole number from 1 to 4 with keys=1024"),
    (
        "composite(key_tokens=5, repeat=latest)",
        "key_tokens=5: expected a whole number from 1 to 4 with keys=1024",
    ),
    (
        "composite(keys=500000, key_tokens=2, length=1000000000000)",
        "keys=500000: expected a number with a power from length=1000000000000 to 1,099,511,627,",
    ),
    ("composite(keys=1, key_tokens=2)", "keys=1: expected a whole number >= 5"),
    ("composite(keys=1, repeat=latest)", "keys=1: expected a whole number >= 2"),
    ("composite(repeat=last)", "repeat=last: expected never | latest; did you mean 'latest'?"),
    ("composite(layout=chaned)", "did you mean 'chained'?"),
    ("composite(group=S4)", "group=S4: expected S3 | S5 | A5 or none"),
    ("composite(modulus=6, group=S3)", "modulus=6: expected none beside group=S3"),
    ("copy(signs=1)", "signs=1: expected a whole number >= 2"),
    ("copy(length=1)", "length=1: expected a whole number >= 2"),
    ("flipflop(length=7)", "length=7: expected an even number of tokens"),
    ("flipflop(length=2)", "length=2: expected a whole number >= 4"),
    ("flipflop(answers=words)", "task flipflop: answers=words: expected bits | tokens"),
    ("modsum(length=1000000000001)", "length=1000000000001: expected a whole number up to 1,000,0"),
    ("modsum(modulus=9e99)", "modulus=9e+99: expected a number of size 1e-15 to 1e+15, or 0"),
    ("flipflop(ignore=1e-99)", "ignore=1e-99: expected a number of size 1e-15 to 1e+15, or 0"),
    ("flipflop(ignore=1.5)", "ignore=1.5: expected a number from 0 to 1"),
]
MIXERS = [
    ("attention(3)", "mixer attention: scheme=3: expected a spec such as name("),
    ("attention(heads=3)", "mixer attention: heads=3: expected a divisor of the width, 8"),
    ("attention(heads=0)", "mixer attention: heads=0: expected a divisor of the width"),
    ("attention(heads=-2)", "heads=-2: expected a divisor of the width, 8"),
    ("deltanet(heads=0)", "mixer deltanet: heads=0: expected a whole number >= 1"),
    ("gated_deltanet(conv=0)", "mixer gated_deltanet: conv=0: expected a whole number >= 1"),
    ("hadamard(convolutions=9)", "convolutions=9: expected a whole number from 0 to 8"),
    ("linear_attention(feature=exp)", "feature=exp: expected elu | relu"),
    ("mamba2(state=0)", "mixer mamba2: state=0: expected a whole number >= 1"),
    ("mamba2(expand=0)", "mixer mamba2: expand=0: expected a whole number >= 1"),
    ("slstm(heads=0)", "mixer slstm: heads=0: expected a whole number >= 1"),
    ("attention(dropout=1)", "dropout=1.0: expected a share from 0 to below 1"),
    ("attention(rope(base=1))", "mixer attention: scheme rope: base=1.0: expected"),
    ("attention(rope, heads=8)", "heads=8: expected a number that makes 8/heads even"),
    ("attention(sinusoidal(base=0.5))", "scheme sinusoidal: base=0.5: expected a number > 1"),
    ("attention(ropes)", "there is no scheme 'ropes'; did you mean 'rope'?"),
    ("attention(scalable)", "there is no scheme 'scalable'; there is one among the weights"),
    ("attention(weights=entmax(alpha=1))", "weights entmax: alpha=1.0: expected a number > 1"),
    ("attention(weights=entmax(alpha=high))", "alpha=high: expected a number or learned"),
    ("attention(weights=topk(k=0))", "k=0: expected a whole number >= 1"),
    ("attention(weights=temperature)", "weights temperature needs a value for length"),
    ("attention(weights=temperature(length=1))", "length=1: expected a number of tokens >= 2"),
    ("attention(weights=softmacs)", "there is no weights 'softmacs'; did you mean 'softmax'?"),
    ("attention(weights=rope)", "there is no weights 'rope'; there is one among the schemes"),
    ("attention(tra, weights=entmax)", "weights=entmax cannot be combined with scheme=tra: this"),
    ("mlp(0)", "mixer mlp: expand=0.0: expected a number > 0"),
    ("mlp(dropout=-0.1)", "dropout=-0.1: expected a share from 0 to below 1"),
    ("glu(dropout=1.5)", "dropout=1.5: expected a share from 0 to below 1"),
]
SCHEMES = [
    ("ropee", "there is no scheme 'ropee'; did you mean 'rope'?"),
    ("learned(ceiling=0)", "scheme learned: ceiling=0: expected a whole number >= 1"),
    ("rope(factor=2)", "scaling=none: expected linear | ntk | yarn if factor or original is set"),
    ("rope(scaling=yarn, factor=2)", "original=none: expected the training length in tokens"),
    ("rope(scaling=ntk, factor=0.5)", "factor=0.5: expected a number >= 1"),
    ("rope(scaling=linear)", "factor=1.0: expected a number > 1 with scaling=linear"),
    ("rope(convention=hf)", "scheme rope: convention=hf: expected paper | transformers"),
    ("rope(convention=transformers)", "convention=transformers cannot be combined with scaling=n"),
    (
        "rope(scaling=linear, factor=2, convention=transformers)",
        "convention=transformers cannot be combined with scaling=linear: the conventions differ",
    ),
    (
        "rope(scaling=ntk, factor=2, convention=transformers)",
        "original=none: expected the training length in tokens with scaling=yarn or convention=tra",
    ),
    ("rope(scaling=ntk, factor=2, original=8)", "original=8: expected the training length in to"),
    (
        "rope(scaling=yarn, factor=2, original=6, convention=transformers)",
        "original=6: expected at least 7 tokens with convention=transformers",
    ),
    ("alibi(convention=authors)", "scheme alibi: convention=authors: expected paper | transformer"),
    ("dape(rope)", "scheme dape: scheme=rope: expected a scheme that is a bias and nothing else: "),
    ("dape(position_only)", "a bias and nothing else: alibi | fire | kerple | t5"),
    ("t5(distance=16)", "distance=16: expected a whole number > buckets/2, 16"),
    ("tra(gate=keys)", "gate=keys: expected query | key or none"),
    ("tra(threshold=high)", "threshold=high: expected"),
    ("tra(gate=none, distance=plain)", "distance=plain cannot be combined with gate=none: without"),
    ("cope(positions=1)", "positions=1: expected a whole number >= 2"),
    ("fire(threshold=0)", "threshold=0.0: expected a number > 0"),
]
METHODS = [
    ("zzz", "there is no method 'zzz' (there are: "),
    ("ema(1.0)", "method ema: decay=1.0: expected a number between 0 and 1"),
    ("ema(0)", "method ema: decay=0.0: expected a number between 0 and 1"),
    ("ema(-0.5)", "method ema: decay=-0.5: expected a number between 0 and 1"),
    ("ema(high)", "method ema: decay=high: expected a number"),
    ("ema(true)", "method ema: decay=true: expected a number"),
    ("ema([0.9])", "method ema: decay=[0.9]: expected a number"),
    ("ema(f(0.9))", "method ema: decay=f(0.9): expected a number"),
    ("ema(0.9, 0.8)", "method ema takes at most 1 arguments (decay), got 2"),
    ("ema(0.9, decay=0.8)", "method ema: decay is given twice: 0.9 and decay=0.8; give it once"),
    ("curriculum(from=0)", "method curriculum: from=0: expected a length >= 1"),
    ("curriculum(from_=8)", "has no argument 'from_'; did you mean 'from'?"),
    ("curriculum(until=0.0)", "until=0.0: expected a share of training > 0 and up to 1"),
    ("curriculum(until=1.5)", "until=1.5: expected a share of training > 0 and up to 1"),
    ("token_mix(share=0)", "share=0.0: expected a share of the tokens > 0 and up to 1"),
    ("block_shuffle(share=0)", "share=0.0: expected a share of the sequences > 0 and up to 1"),
    ("random_windows(until=0)", "until=0.0: expected a share of training > 0 and up to 1"),
    ("curriculum(level=0)", "level=0.0: expected a loss > 0"),
    ("curriculum(grow=0)", "grow=0: expected a whole number >= 1"),
    ("curriculum(by=time)", "by=time: expected steps | loss"),
    ("random_positions(16777217)", "range=16777217: expected a number of positions from 1 to 16,7"),
    (
        "random_positions(100000000000000000000)",
        "range=100000000000000000000: expected a whole nu",
    ),
    ("dat(switch=1e-99)", "switch=1e-99: expected a number of size 1e-15 to 1e+15, or 0"),
    ("dat(phase1=weights(a=1e99))", "phase1.a=1e+99: expected a number of size 1e-15 to 1e+15"),
    ("dat(mod=skip)", "method dat has no argument 'mod'; did you mean 'mode'?"),
    (
        "dat(mode=skipp)",
        "method dat: mode=skipp: expected skip | freeze | ramp | detach; did you mean 'skip'?",
    ),
    ("dat(mode=1)", "method dat: mode=1: expected skip | freeze | ramp | detach"),
    ("dat(rewarm=1.5)", "method dat: rewarm=1.5: expected a whole number"),
    ("dat(rewarm=-1)", "method dat: rewarm=-1: expected a number of steps >= 0"),
    ("dat(ramp=-1)", "method dat: ramp=-1: expected a number of steps >= 0"),
    ("dat(rate=0)", "method dat: rate=0.0: expected a factor > 0"),
    ("dat(recurrent=-0.5)", "method dat: recurrent=-0.5: expected a factor >= 0 (0 freezes)"),
    ("dat(watch=3)", "method dat: watch=3: expected a word or none"),
    (
        "dat(phase1=wights(recall=0.1))",
        "phase1=wights(recall=0.1): expected state | full or weights(name=number, ...)",
    ),
    ("dat(switch=none)", "switch=none: expected a number or a spec"),
    ("dat(switch=bellow(1))", "no trigger 'bellow'; did you mean 'below'?"),
    ("dat(switch=below(0))", "method dat: switch below: level=0.0: expected a loss > 0"),
    ("dat(switch=1.5)", "method dat: switch=1.5: expected a step >= 0, or a share"),
    ("dat(otherwise=hope)", "otherwise=hope: expected switch | wait | retry"),
]
MODELS = [
    ("2 x (lstm > attenton)", "no mixer or preset 'attenton'; did you mean 'attention'?"),
    ("serail", "no mixer or preset 'serail'; did you mean 'serial'?"),
    ("lstm(size=3)", "mixer lstm has no argument 'size'"),
    ("serial(4)", "preset serial takes at most 0 arguments"),
    ("tra_transformer > mlp @ 8", "other sublayers: it sets embedding=uniform(0.01), norm=rms"),
    ("tra_transformer(ropes) @ 8", "there is no scheme 'ropes'; did you mean 'rope'?"),
    ("tra_transformer(dropout=2) @ 8", "dropout=2.0: expected a share from 0 to below 1"),
    ("gru | mlp @ 8, residual=normalised", "residual=normalised cannot be combined with '|'"),
    ("lstm | attention(heads=3) @ 8", "heads=3: expected a divisor of the width, 8"),
    ("mlp @ 8, dropout=1", "dropout=1: expected a share"),
    ("lstm @ 100000000000", "width=100000000000: expected a whole number up to 1,048,576"),
    ("mlp @ 1048577", "width=1048577: expected a whole number up to 1,048,576"),
    ("lstm @ 1048576", "GiB of weights: expected no more than the "),
    ("mlp(expand=1e12) @ 8", "mixer mlp: 2.38e+05 GiB of weights: expected no more than the "),
    ("attention(learned(ceiling=1000000000000), heads=2) @ 8", "scheme learned: 2.98e+04 GiB of"),
    ("mlp @ 8, head=1000000000000", "the line is mlp @ 8, head=1000000000000, the vocabulary 7"),
    ("1000000 x (mlp) @ 8", "sublayers=1,000,000: expected at most 2,000; every 'n x' multiplies"),
    ("9 x 9 x 9 x (mlp | gru | 2 x mlp) @ 8", "sublayers=2,916: expected at most 2,000"),
    ("600 x serial @ 8", "sublayers=7,200: expected at most 2,000"),
    ("mlp @ 8, head=4", "head=4: expected at least 5, the number of the task's answers"),
]
ITEMS = [
    *(("task", spec, f"task {spec.partition('(')[0]}: ", says) for spec, says in TASKS),
    ("task", "paritty", "", "there is no task 'paritty'; did you mean 'parity'? (there are: "),
    *(("mixer", spec, "", says) for spec, says in MIXERS),
    *(("scheme", spec, "", says) for spec, says in SCHEMES),
    *(("method", spec, "", says) for spec, says in METHODS),
]


@pytest.mark.parametrize(("kind", "spec", "begins", "says"), ITEMS, ids=[row[1] for row in ITEMS])
def test_bad_spec_is_refused_with_field_value_and_accepted(kind, spec, begins, says):
    with pytest.raises(SpecError) as caught:
        registry.KINDS[kind].build(spec, **SIZES.get(kind, {}))
    assert says in str(caught.value)
    assert str(caught.value).startswith(begins)


@pytest.mark.parametrize(("line", "says"), MODELS, ids=[line for line, _ in MODELS])
def test_bad_model_line_is_refused_with_field_value_and_accepted(line, says):
    with pytest.raises(SpecError) as caught:
        build_model(line, 7, 5, seed=0)
    assert says in str(caught.value)


#: how the range of a share is written, and whether it has 0 and 1 in it
SHARES = {
    "from 0 to 1": (True, True),
    "from 0 to below 1": (True, False),
    "> 0 and up to 1": (False, True),
    "between 0 and 1": (False, False),
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, r in registry.KINDS.items() for name in r.names()]
)
def test_range_of_a_share_says_whether_its_ends_are_accepted(kind, name):
    items = registry.KINDS[kind]
    entry = items.entry(name)
    for parameter in entry.parameters(items.caller_arguments):
        words = accepted(items, entry, parameter)
        forms = [form for form in SHARES if re.search(rf"{form}(?![\d,])", words)]
        for value, is_accepted in zip((0.0, 1.0), SHARES[forms[0]] if forms else (), strict=False):
            field = re.escape(f"{parameter.name}={value}: expected ")
            expected = nullcontext() if is_accepted else pytest.raises(SpecError, match=field)
            with expected:
                try_item(items, Spec(name, (), ((parameter.name, value),)))


@pytest.mark.parametrize("weights", ["scalable", "temperature(length=3)", "asentmax"])
def test_weights_that_scale_queries_are_refused_beside_a_scheme_without_queries(weights):
    with pytest.raises(SpecError) as caught:
        registry.mixers.build(f"attention(position_only, weights={weights})", width=WIDTH)
    refused = f"weights={weights} cannot be combined with scheme=position_only: "
    assert refused in str(caught.value)


def test_asentmax_does_not_offer_a_learned_alpha():
    with pytest.raises(SpecError, match=r"alpha=1.0: expected a number > 1") as caught:
        registry.weightings.build("asentmax(alpha=1)", width=WIDTH, heads=2)
    assert "learned" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ModSum(modulus=2.5), "modulus=2.5"),
        (lambda: ModSum(supervision="dense"), "supervision=dense: expected outcome"),
        (lambda: Composite(layout="mixed"), "layout=mixed: expected separate"),
        (lambda: Composite(keys=True), "keys=True"),
        (lambda: Composite(key_tokens=True), "key_tokens=True: expected a whole number from 1 to"),
        (lambda: Composite(key_tokens=2.0), "key_tokens=2.0: expected a whole number from 1 to 4"),
        (lambda: Composite(from_=26), "from=26: expected a whole number from 1 to 25"),
        (lambda: Composite(layout="interleaved", from_=1), "from=1: expected a whole number from"),
    ],
)
def test_bad_value_in_a_plain_call_of_a_task_is_refused(make, says):
    with pytest.raises(SpecError, match=says):
        make()
