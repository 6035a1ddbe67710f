"""The JAX peer of `outlast bench seeds`, a program of its own in `benchmarks/`."""

import importlib.util
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from outlast.bench.seeds.plain import LAYOUTS, Hybrid

JAX = Path(__file__).parents[2] / "benchmarks" / "jax_seeds.py"


def test_missing_jax_is_a_clear_error():
    blocked = f"import sys, runpy; sys.modules['jax'] = None; runpy.run_path({str(JAX)!r})"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: JAX cannot be imported (")
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def load_program():
    spec = importlib.util.spec_from_file_location("jax_seeds", JAX)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(monkeypatch):
    """Calls the program with arguments, and with stand-ins for JAX and for what it measures."""
    numpy, devices = SimpleNamespace(), [SimpleNamespace(device_kind="none")]
    jax = SimpleNamespace(__version__="0", devices=lambda: devices, numpy=numpy)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    program = load_program()
    assert tuple(LAYOUTS) == program.LAYOUTS

    def call(measure, *arguments):
        monkeypatch.setattr(program, "measure", measure)
        monkeypatch.setattr(sys, "argv", ["jax_seeds.py", *arguments])
        program.main()

    return call


def test_times_are_written_after_each_number_of_seeds(call, tmp_path):
    out = tmp_path / "jax.json"

    def cut_short(seeds, *_):
        if seeds == 3:
            raise KeyboardInterrupt
        return 1.0, 2.0 * seeds

    with pytest.raises(KeyboardInterrupt):
        call(cut_short, "--seeds", "1", "2", "3", "--out", str(out))
    kept = json.loads(out.read_text())
    assert [(r["seeds"], r["ms"]) for r in kept["rows"]] == [(1, 2), (2, 4)]
    assert kept["layout"] == "serial"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--out", ".", "expected a file in a folder that is there"),
        ("--layout", "diagonal", "--layout: .*'diagonal'.*serial.*parallel"),
    ],
)
def test_bad_option_is_refused_before_measuring(call, option, value, message, capsys):
    with pytest.raises(SystemExit):
        call(partial(pytest.fail, "it is too early"), option, value)
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_jax_measures_the_layout_asked_for(call, layout, capsys):
    layouts = []
    call(lambda *args: layouts.append(args[-2]) or (1.0, 2.0), "--seeds", "1", "--layout", layout)
    assert layouts == [layout]
    assert layout in capsys.readouterr().out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_jax_peer_is_the_same_model(layout):
    pytest.importorskip("jax")
    program, plain = load_program(), Hybrid(2, 16, 4, 30, 30, layout)
    weight_of = {name: weight.detach().numpy() for name, weight in plain.named_parameters()}

    def table(name):
        """A weight of all blocks, as x W has it."""
        stacked = np.stack([weight_of[f"blocks.{n}.{name}"] for n in range(2)])
        return stacked.swapaxes(1, 2) if stacked.ndim == 3 else stacked

    def dense(name):
        return {"weight": table(f"{name}.weight"), "bias": table(f"{name}.bias")}

    def norm(scale, shift):
        return {"scale": scale, "shift": shift}

    lstm = {"input": "weight_ih", "recurrent": "weight_hh", "bias_in": "bias_ih", "bias": "bias_hh"}
    names = [f"norms.{n}" for n in range(3)]
    weights = {
        "embedding": weight_of["embedding.weight"],
        "blocks": {
            "norms": [norm(table(f"{n}.weight"), table(f"{n}.bias")) for n in names],
            "lstm": {ours: table(f"lstm.{name}_l0") for ours, name in lstm.items()},
            "qkv": table("qkv.weight"),
            **{name: dense(name) for name in ("out", "up", "down")},
        },
        "norm": norm(weight_of["norm.weight"], weight_of["norm.bias"]),
        "head": {"weight": weight_of["head.weight"].T, "bias": weight_of["head.bias"]},
    }
    weights = program.jax.tree.map(program.jnp.asarray, weights)
    tokens = torch.randint(30, (3, 9))
    logits = torch.tensor(np.array(program.logits(weights, tokens.numpy(), layout, 1)))
    torch.testing.assert_close(logits, plain(tokens).detach(), atol=1e-4, rtol=1e-3)
