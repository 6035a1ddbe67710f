"""A value a task cannot take is refused by name, whether it comes in a spec or in a plain call."""

import pytest

from outlast import registry
from outlast.errors import SpecError
from outlast.tasks.composite import Composite
from outlast.tasks.modsum import ModSum


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("modsum(modulus=1)", "modulus=1: expected a whole number >= 2"),
        ("modsum(length=1)", "length=1: expected a whole number >= 2"),
        ("modsum(supervision=none_at_all)", "supervision=none_at_all: expected outcome | aligned"),
        ("parity(length=0)", "length=0: expected a whole number >= 2"),
        ("entangled_parity(queries=-0.1)", "queries=-0.1: expected a number from 0 to 1"),
        ("entangled_parity(keys=10)", "keys=10: expected a whole number >= length=25"),
        ("recall(values=1)", "values=1: expected a whole number >= 2"),
        ("recall(queries=0)", "queries=0: expected a whole number >= 1"),
        ("recall(keys=24)", "keys=24: expected a whole number >= length=25"),
        ("composite(modulus=1)", "modulus=1: expected a whole number >= 2"),
        ("composite(keys=8, length=9)", "keys=8: expected a whole number >= length=9"),
        ("composite(queries=0)", "queries=0: expected a whole number >= 1"),
        ("composite(layout=chaned)", "did you mean 'chained'?"),
        ("copy(signs=1)", "signs=1: expected a whole number >= 2"),
        ("copy(length=1)", "length=1: expected a whole number >= 2"),
        ("flipflop(length=7)", "length=7: expected an even number of tokens"),
        ("flipflop(length=2)", "length=2: expected a whole number >= 4"),
        ("flipflop(ignore=1.5)", "ignore=1.5: expected a number from 0 to 1"),
    ],
)
def test_bad_values_in_a_spec(spec, said):
    with pytest.raises(SpecError) as error:
        registry.tasks.build(spec)
    assert said in str(error.value)
    assert str(error.value).startswith(f"task {spec.partition('(')[0]}: ")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ModSum(modulus=2.5), "modulus=2.5"),
        (lambda: ModSum(supervision="dense"), "supervision=dense: expected outcome"),
        (lambda: Composite(layout="mixed"), "layout=mixed: expected separate"),
        (lambda: Composite(keys=True), "keys=True"),
    ],
)
def test_bad_values_in_a_plain_call(make, said):
    with pytest.raises(SpecError, match=said):
        make()
