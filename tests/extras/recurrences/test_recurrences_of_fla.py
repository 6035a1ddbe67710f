"""Our recurrences against the plain versions of flash-linear-attention, with gradients.

Theirs are the files `fla/ops/*/naive.py` of `fla-core`. They are read as they are, without the
package around them: where that can be imported, transformers takes its kernels, on a CPU too,
where they fail. So `make test-extras` has it in a folder of its own.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from oracles import ROWS, TOKENS, close_gradients, leaf, recurrence_inputs, swapped
from torch import Tensor

from outlast.kernels.linear_recurrence import decayed_sum, delta_rule, linear_scan
from outlast.mixers.heads import from_heads, to_heads
from outlast.registry import mixers
from outlast.testing.compare import randn

pytest.importorskip("einops")


def fla_folder() -> Path | None:
    """The folder of the package: that of `make test-extras`, or one that is installed."""
    apart = Path(sys.prefix) / "oracles" / "fla"
    if apart.is_dir():
        return apart
    spec = importlib.util.find_spec("fla")  # imports nothing
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(folders[0]) if folders else None


FLA = fla_folder()
if FLA is None:
    pytest.skip("fla-core is not there (make test-extras)", allow_module_level=True)


@cache
def naive(operation: str) -> ModuleType:
    """`fla/ops/OPERATION/naive.py` as a module of its own."""
    spec = importlib.util.spec_from_file_location(
        f"naive_{operation}", FLA / "ops" / operation / "naive.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scaled(q: Tensor) -> Tensor:
    """Theirs have the factor inside."""
    return q.shape[-1] ** -0.5 * q


@pytest.mark.parametrize("kind", ["recurrence", "chunkwise"])
def test_delta_rule_equals_that_of_fla(kind):
    """DeltaNet's: nothing decays. Their chunks want no state before, and whole chunks."""
    inputs = recurrence_inputs()
    tokens = TOKENS if kind == "recurrence" else 128
    q, k, v, beta = (inputs[name][:, :, :tokens] for name in ("q", "k", "v", "beta"))
    leaves = [inputs[name] for name in ("q", "k", "v", "beta")]
    function = getattr(naive("delta_rule"), f"delta_rule_{kind}")
    if kind == "recurrence":
        state = inputs["state"]
        leaves.append(state)
        theirs = function(q, k, v, beta.squeeze(-1), initial_state=state)
    else:
        state = torch.zeros_like(inputs["state"])
        theirs = function(q, k, v, beta.squeeze(-1))
    ours = delta_rule(scaled(q), k, v, beta, torch.zeros_like(beta), state)
    close_gradients(ours, theirs, leaves)


@pytest.mark.parametrize("kind", ["recurrent", "chunk"])
def test_gated_delta_rule_equals_that_of_fla(kind):
    inputs = recurrence_inputs()
    q, k, v, beta, log_decay, state = inputs.values()
    y, last = getattr(naive("gated_delta_rule"), f"naive_{kind}_gated_delta_rule")(
        *(swapped(x) for x in (q, k, v)),
        beta=swapped(beta.squeeze(-1)),
        g=swapped(log_decay.squeeze(-1)),
        initial_state=state,
        output_final_state=True,
    )
    ours = delta_rule(scaled(q), k, v, beta, log_decay, state)
    close_gradients(ours, (swapped(y), last), [*inputs.values()])


@pytest.mark.parametrize("kind", ["recurrent", "chunk"])
def test_decayed_sum_equals_simple_gla_of_fla(kind):
    """The recurrence of Mamba-2."""
    inputs = recurrence_inputs()
    del inputs["beta"]
    q, k, v, log_decay, state = inputs.values()
    y, last = getattr(naive("simple_gla"), f"naive_{kind}_simple_gla")(
        *(swapped(x) for x in (q, k, v)),
        swapped(log_decay.squeeze(-1)),
        initial_state=state,
        output_final_state=True,
    )
    ours = decayed_sum(scaled(q), k, v, log_decay, state)
    close_gradients(ours, (swapped(y), last), [*inputs.values()])


def test_decayed_sum_without_decay_equals_linear_attention_of_fla():
    inputs = recurrence_inputs()
    q, k, v, state = leaves = [inputs[name] for name in ("q", "k", "v", "state")]
    y, last = naive("linear_attn").naive_recurrent_linear_attn(
        *(swapped(x) for x in (q, k, v)), initial_state=state, output_final_state=True
    )
    ours = decayed_sum(scaled(q), k, v, q.new_zeros(TOKENS, 1), state)
    close_gradients(ours, (swapped(y), last), leaves)


def test_linear_attention_equals_the_normalised_one_of_fla():
    """The layer. Its maps are ours on both sides; the recurrence and the division are theirs.

    With elu + 1 no sum is near 0, where the epsilons of the two would show.
    """
    torch.manual_seed(0)
    mixer = mixers.build("linear_attention(heads=4)", width=16)
    x = leaf(ROWS, TOKENS, 16, seed=0)
    q, k, v = (to_heads(part, 4) for part in mixer.qkv(x).chunk(3, -1))
    y, (memory, total) = naive("linear_attn").naive_recurrent_linear_attn(
        *(swapped(part) for part in (F.elu(q) + 1, F.elu(k) + 1, v)),
        output_final_state=True,
        normalize=True,
    )
    theirs = mixer.out(from_heads(swapped(y)))
    ours, (state, _) = mixer(x)
    their_state = torch.cat([memory, swapped(total).mT], -1)
    close_gradients([ours, state], [theirs, their_state], [x, *mixer.parameters()])


def test_linear_scan_equals_hgrn_of_fla():
    """The recurrence of minLSTM."""
    decay = randn(ROWS, TOKENS, 5).float().sigmoid().requires_grad_()
    x, state = leaf(ROWS, TOKENS, 5, seed=1), leaf(ROWS, 5, seed=2)
    y, last = naive("hgrn").naive_recurrent_hgrn(
        x, decay.log(), initial_state=state, output_final_state=True
    )
    ours = linear_scan(decay, x, state)
    close_gradients([ours, ours[:, -1]], [y, last], [decay, x, state])
