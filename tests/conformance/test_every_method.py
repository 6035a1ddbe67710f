"""What every registered method must hold to: a pure function of the step and a JSON state."""

from subjects import METHODS, each, of

from outlast.registry import methods
from outlast.testing.methods import RULES

#: worth a test beyond the default and the options that are spelt out
MORE = [
    "dat(switch=plateau(patience=20), rewarm=10)",
    "dat(switch=0.3, phase1=full, mode=ramp, ramp=30)",
    "dat(switch=below(1e-9), otherwise=retry, latest=0.2)",
    "dat(switch=below(1e-9), otherwise=wait, recurrent=0)",
    "dat(switch=converged(patience=20, tolerance=0.05))",
    "loss_order(switch=60)",
    "curriculum(from=2, by=loss, level=0.5, grow=2)",
    "curriculum(from=2, by=plateau, patience=20)",
]


@of([*METHODS, *MORE])
@each(RULES)
def test_method_conforms(subject, rule):
    rule(subject)


def test_every_registered_method_is_a_subject():
    assert {line.partition("(")[0] for line in METHODS} == set(methods.names())


def test_only_ema_has_an_average():
    assert methods.build("ema(0.9)").average == 0.9
    assert methods.build("dat").average is None
