"""Names to things: binding, checking, canonical specs, and plug-ins of other packages."""

import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Literal

import pytest

from outlast import registry
from outlast.errors import OutlastError, SpecError
from outlast.registry import Registry, methods, mixers
from outlast.specs import Spec, parse

# ---- every registered item ---------------------------------------------------------------------

#: kinds whose items are built from a spec alone, and what the program adds
BUILT: dict[str, dict[str, Any]] = {
    "task": {},
    "mixer": {"width": 16},
    "scheme": {"width": 16, "heads": 2},
    "method": {},
}
EVERY = [
    (kind, name)
    for kind in BUILT
    for name in registry.KINDS[kind].names()
    if all(
        p.default is not registry.REQUIRED
        for p in registry.KINDS[kind].entry(name).parameters(registry.KINDS[kind].caller_arguments)
    )
]
every_item = pytest.mark.parametrize(("kind", "name"), EVERY, ids=[f"{k}-{n}" for k, n in EVERY])


@every_item
def test_default_and_full_spec_build_the_same_item(kind, name):
    items = registry.KINDS[kind]
    assert items.build(name, **BUILT[kind]).spec == Spec(name)
    full = items.canonical(name, full=True)
    parameters = items.entry(name).parameters(items.caller_arguments)
    assert parse(str(full)) == full
    assert items.bind(str(full)) == {p.python_name: p.default for p in parameters}
    assert items.build(str(full), **BUILT[kind]).spec == Spec(name)


@every_item
def test_every_item_has_a_summary_and_a_source(kind, name):
    entry = registry.KINDS[kind].entry(name)
    assert entry.summary.endswith((".", ":")) or len(entry.summary) > 10
    assert entry.source


def test_summaries_read_without_importing_are_those_of_the_items():
    code = """
        import json, sys
        from outlast.registry import KINDS
        print(json.dumps({kind: items.summaries() for kind, items in KINDS.items()}))
        assert "torch" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    listed = json.loads(done.stdout)
    for kind, items in registry.KINDS.items():
        entries = {name: items.entry(name) for name in items.names()}
        assert entries
        assert listed[kind] == {name: [e.summary, e.source] for name, e in entries.items()}


# ---- canonical specs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "typed", "canonical", "full"),
    [
        (methods, "ema", "ema", "ema(decay=0.999)"),
        (methods, "ema(decay=0.9)", "ema(decay=0.9)", "ema(decay=0.9)"),
        (methods, "ema(0.999)", "ema", "ema(decay=0.999)"),
        (
            mixers,
            "attention(nope, 4)",
            "attention",
            "attention(nope, heads=4, weights=softmax, dropout=0.0)",
        ),
        (
            mixers,
            "attention(heads=2)",
            "attention(heads=2)",
            "attention(nope, heads=2, weights=softmax, dropout=0.0)",
        ),
        (
            mixers,
            "attention(scheme=rope(base=5.0))",
            "attention(rope(base=5.0))",
            "attention(rope(base=5.0), heads=4, weights=softmax, dropout=0.0)",
        ),
        (mixers, "mlp(expand=2)", "mlp(expand=2.0)", "mlp(expand=2.0, dropout=0.0)"),
        (
            methods,
            "curriculum(8, loss)",
            "curriculum(from=8, by=loss)",
            "curriculum(from=8, by=loss, until=0.5, level=0.1, grow=1, patience=200)",
        ),
        (
            methods,
            "loss_order(phase1=weights(recall=0.1), watch=none)",
            "loss_order(phase1=weights(recall=0.1))",
            "loss_order(switch=below(0.01), phase1=weights(recall=0.1), watch=none, "
            "latest=none, otherwise=switch, rate=1.0)",
        ),
    ],
)
def test_canonical_and_full_spec_of_a_line(items, typed, canonical, full):
    assert str(items.canonical(typed)) == canonical
    assert str(items.canonical(typed, full=True)) == full
    assert items.bind(full) | items.bind(typed) == items.bind(full)
    assert str(items.canonical(canonical)) == canonical


@pytest.mark.parametrize("latest", [1, 1.0])
def test_share_1_0_and_step_1_stay_different(latest):
    line = str(methods.canonical(Spec("dat", (), (("latest", latest),)), full=True))
    bound = methods.bind(line)["latest"]
    assert (bound, type(bound)) == (latest, type(latest))


# ---- binding, on an item of our own ------------------------------------------------------------


class Gadget:
    """A thing with an argument of every sort."""

    def __init__(
        self,
        size: int,
        from_: float = 1.0,
        mode: Literal["on", "off"] = "on",
        many: tuple[int, ...] = (1,),
        weights: dict[str, float] | None = None,
        part: Spec = Spec("cog"),
        deep: bool = False,
    ) -> None:
        if size < 1:
            raise SpecError(f"size={size}: expected a whole number >= 1")
        self.size, self.from_, self.mode, self.many = size, from_, mode, many
        self.weights, self.part, self.deep = weights, part, deep


@pytest.fixture
def gadgets() -> Registry:
    # "outlast.errors" has no files of ours to import
    items = Registry("gadget", "outlast.errors")
    items.register("gadget", "the test")(Gadget)
    return items


def test_arguments_of_every_type_are_bound(gadgets):
    drawn_batch = gadgets.build(
        "gadget(3, from=2, mode=off, many=[4, 5], weights=weights(a=1), part=cog(2), deep=true)"
    )
    assert vars(drawn_batch) | {"spec": None} == {
        "size": 3,
        "from_": 2.0,
        "mode": "off",
        "many": (4, 5),
        "weights": {"a": 1.0},
        "part": Spec("cog", (2,)),
        "deep": True,
        "spec": None,
    }
    assert type(drawn_batch.from_) is float
    assert gadgets.build(str(drawn_batch.spec)).spec == drawn_batch.spec
    assert gadgets.build("gadget(3, many=7)").many == (7,)


def test_canonical_spec_leaves_out_defaults(gadgets):
    assert gadgets.bind("gadget(3, mode=on)") == {"size": 3, "mode": "on"}
    assert str(gadgets.canonical("gadget(3, mode=on, from=1)")) == "gadget(size=3)"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("gadget", "gadget gadget needs a value for size"),
        ("gadget(0)", "gadget gadget: size=0: expected a whole number >= 1"),
        ("gadget(1, many=[1, a])", "many=a: expected a whole number"),
        ("gadget(1, weights=weights(a=b))", "weights=weights(a=b): expected weights(name=number"),
        ("gadget(1, deep=1)", "deep=1: expected true | false"),
        ("gadget(1, mode=[on])", "mode=[on]: expected on | off"),
    ],
)
def test_bad_value_of_each_argument_type_is_refused(gadgets, spec, says):
    with pytest.raises(SpecError) as caught:
        gadgets.build(spec)
    assert says in str(caught.value)


def test_registering_another_item_under_a_taken_name_is_refused(gadgets):
    gadgets.register("gadget", "the test")(Gadget)
    with pytest.raises(SpecError, match="'gadget' is registered twice: by the test and by another"):
        gadgets.register("gadget", "another")(type("Other", (), {}))


# ---- plug-ins ----------------------------------------------------------------------------------


class Shelf:
    """A folder of installed packages, such as site-packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, package: str, points: str, **modules: str) -> None:
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(text))
        info = self.folder / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n"
        )
        info.joinpath("entry_points.txt").write_text(textwrap.dedent(points))


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Shelf:
    monkeypatch.syspath_prepend(tmp_path)
    return Shelf(tmp_path)


def test_plug_in_item_is_listed_and_built(gadgets, shelf):
    shelf.install(
        "more-gadgets",
        "[outlast.gadgets]\nsprocket = more_gadgets:Sprocket\n",
        more_gadgets="""
            class Sprocket:
                '''A wheel with teeth.'''
                def __init__(self, teeth: int = 12) -> None:
                    self.teeth = teeth
        """,
    )
    assert gadgets.summaries() == {
        "gadget": ("A thing with an argument of every sort.", "the test"),
        "sprocket": ("A wheel with teeth.", "more-gadgets"),
    }
    assert gadgets.names() == ["gadget", "sprocket"]
    assert gadgets.build("sprocket(teeth=8)").teeth == 8


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("task", "outlast.tasks"),
        ("mixer", "outlast.mixers"),
        ("scheme", "outlast.schemes"),
        ("weights", "outlast.weights"),
        ("method", "outlast.methods"),
        ("preset", "outlast.presets"),
        ("study", "outlast.studies"),
    ],
)
def test_entry_point_group_of_each_kind(kind, group):
    assert registry.KINDS[kind].group == group


def test_name_clash_of_two_plug_ins_names_both_every_time(gadgets, shelf):
    for package in ("first", "second"):
        points = f"[outlast.gadgets]\nwheel = {package}_wheel:Wheel\n"
        shelf.install(f"pack-{package}", points, **{f"{package}_wheel": "class Wheel: ...\n"})
    for _ in range(2):
        with pytest.raises(SpecError, match="'wheel' is registered twice") as caught:
            gadgets.names()
        assert "pack-first" in str(caught.value)
        assert "pack-second" in str(caught.value)


def test_plug_in_cannot_take_a_registered_name(gadgets, shelf):
    shelf.install(
        "thief", "[outlast.gadgets]\ngadget = thief_gadget:Other\n", thief_gadget="class Other: ..."
    )
    with pytest.raises(SpecError, match="registered twice: by the test and by thief"):
        gadgets.build("gadget(1)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module"),
        ("raise RuntimeError('no GPU here')", "RuntimeError: no GPU here"),
        ("Gone = None", "TypeError: bad_plug_in:Gone is not a class or function"),
        ("", "AttributeError: "),
    ],
)
def test_broken_plug_in_is_left_out_and_named(gadgets, shelf, caplog, text, reason, request):
    sys.modules.pop("bad_plug_in", None)
    request.addfinalizer(lambda: sys.modules.pop("bad_plug_in", None))
    shelf.install("bad-pack", "[outlast.gadgets]\nbad = bad_plug_in:Gone\n", bad_plug_in=text)
    with caplog.at_level(logging.WARNING):
        assert gadgets.names() == ["gadget"]
    assert gadgets.build("gadget(1)").size == 1
    assert "bad" not in gadgets
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    with pytest.raises(OutlastError) as caught:
        gadgets.build("bad")
    for messages in (str(caught.value), caplog.text):
        assert (
            "gadget 'bad' of the plug-in bad-pack (bad_plug_in:Gone) cannot be imported" in messages
        )
        assert reason in messages


def test_plug_in_mixer_works_in_a_layout(tmp_path):
    shelf = Shelf(tmp_path)
    shelf.install(
        "averages",
        "[outlast.mixers]\naverage = averages:Average\nbroken = averages:Nothing\n",
        averages="""
            import torch
            from outlast.mixers import Mixer

            class Average(Mixer):
                '''The mean of the tokens so far.'''
                pathway = "recurrent"

                def __init__(self, width: int, keep: float = 1.0) -> None:
                    super().__init__()

                def forward(self, x, state=None):
                    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None], None
        """,
    )
    code = """
        import torch
        from outlast.models import build_model
        model = build_model("2 x (average(0.5) > mlp) @ 8", 5, 3, seed=0)
        print(model.layout)
        print(tuple(model(torch.zeros(2, 4, dtype=torch.long))[0].shape))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["2 x (average(keep=0.5) > mlp) @ 8", "(2, 4, 5)"]
    assert "mixer 'broken' of the plug-in averages" in done.stderr


def test_concurrent_first_lookups_find_every_item() -> None:
    script = """
import threading
from outlast.registry import tasks, mixers
said = []
def ask():
    try:
        tasks.entry("parity"), mixers.entry("lstm")
    except Exception as error:
        said.append(str(error))
threads = [threading.Thread(target=ask) for _ in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
print(said)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
