"""Our recurrences against the torch code of transformers, with gradients."""

import inspect

import pytest
import torch
from oracles import HEADS, ROWS, TOKENS, close, close_gradients, leaf, recurrence_inputs, swapped

from outlast.kernels.linear_recurrence import delta_rule
from outlast.mixers.xlstm import mlstm_cell
from outlast.registry import mixers

pytest.importorskip("transformers")

WIDTH = 16


@pytest.fixture
def qwen3_next(monkeypatch):
    """The module of Qwen3-Next with its own torch code.

    Where fla can be imported it takes the kernels of fla instead, on a CPU too.
    """
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
        monkeypatch.setattr(theirs, name, inspect.unwrap(getattr(theirs, name)))
    return theirs


@pytest.mark.parametrize("kind", ["chunk", "recurrent"])
def test_delta_rule_equals_that_of_transformers(kind, qwen3_next):
    inputs = recurrence_inputs()
    q, k, v, beta, log_decay, state = inputs.values()
    theirs, last = getattr(qwen3_next, f"torch_{kind}_gated_delta_rule")(
        *(swapped(x) for x in (q, k, v)),
        g=swapped(log_decay.squeeze(-1)),
        beta=swapped(beta.squeeze(-1)),
        initial_state=state,
        output_final_state=True,
    )
    ours = delta_rule(q.shape[-1] ** -0.5 * q, k, v, beta, log_decay, state)
    close_gradients(ours, (swapped(theirs), last), [*inputs.values()])


def test_gated_deltanet_equals_the_layer_of_qwen3_next(qwen3_next):
    config = qwen3_next.Qwen3NextConfig(
        hidden_size=WIDTH,
        linear_num_value_heads=HEADS,
        linear_num_key_heads=HEADS,
        linear_key_head_dim=WIDTH // HEADS,
        linear_value_head_dim=WIDTH // HEADS,
        rms_norm_eps=1e-6,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    torch.manual_seed(0)
    layer = qwen3_next.Qwen3NextGatedDeltaNet(config, 0)
    mixer = mixers.build(f"gated_deltanet(heads={HEADS}, negative=false)", width=WIDTH)
    with torch.no_grad():
        # theirs: q, k, v and gate of one head after another
        by_head = layer.in_proj_qkvz.weight.reshape(HEADS, 4, WIDTH // HEADS, WIDTH)
        parts = by_head.transpose(0, 1).reshape(4, WIDTH, WIDTH)
        mixer.qkv.weight.copy_(parts[:3].reshape(-1, WIDTH))
        mixer.gate.weight.copy_(parts[3])
        beta, step = layer.in_proj_ba.weight.reshape(HEADS, 2, WIDTH).unbind(1)
        mixer.beta.weight.copy_(beta)
        mixer.decay.step.weight.copy_(step)
        mixer.decay.step.bias.copy_(layer.dt_bias)
        mixer.decay.rate.copy_(layer.A_log)
        mixer.conv.weight.copy_(layer.conv1d.weight.squeeze(1).T.flip(0))
        mixer.conv.bias.zero_()
        mixer.norm.weight.copy_(layer.norm.weight)
        mixer.out.weight.copy_(layer.out_proj.weight)
    x = leaf(ROWS, TOKENS, WIDTH, seed=0)
    decay, norm = mixer.decay, mixer.norm
    close_gradients(
        [mixer(x)[0]],
        [layer(x)],
        [x, decay.rate, decay.step.bias, norm.weight, mixer.out.weight],
        [x, layer.A_log, layer.dt_bias, layer.norm.weight, layer.out_proj.weight],
    )


def test_mamba2_equals_the_layer_of_transformers():
    from transformers.models.mamba2 import modeling_mamba2 as theirs

    config = theirs.Mamba2Config(
        hidden_size=WIDTH,
        num_heads=HEADS,
        head_dim=2 * WIDTH // HEADS,
        state_size=8,
        expand=2,
        n_groups=1,
        conv_kernel=4,
        chunk_size=32,
        layer_norm_epsilon=1e-6,
        num_hidden_layers=1,
    )
    torch.manual_seed(0)
    layer = theirs.Mamba2Mixer(config, 0)
    mixer = mixers.build(f"mamba2(heads={HEADS}, state=8)", width=WIDTH)
    with torch.no_grad():
        inputs, steps = layer.in_proj.weight.tensor_split([-HEADS])
        mixer.input.weight.copy_(inputs)
        mixer.decay.step.weight.copy_(steps)
        mixer.decay.step.bias.copy_(layer.dt_bias)
        mixer.decay.rate.copy_(layer.A_log)
        mixer.conv.weight.copy_(layer.conv1d.weight.squeeze(1).T.flip(0))
        mixer.conv.bias.copy_(layer.conv1d.bias)
        mixer.skip.copy_(layer.D)
        mixer.norm.weight.copy_(layer.norm.weight)
        mixer.out.weight.copy_(layer.out_proj.weight)
    x = leaf(ROWS, TOKENS, WIDTH, seed=0)
    decay, norm = mixer.decay, mixer.norm
    close_gradients(
        [mixer(x)[0]],
        [layer(x)],
        [x, decay.rate, decay.step.bias, mixer.skip, norm.weight, mixer.out.weight],
        [x, layer.A_log, layer.dt_bias, layer.D, layer.norm.weight, layer.out_proj.weight],
    )


def test_mlstm_equals_that_of_transformers():
    from transformers.models.xlstm import modeling_xlstm as theirs

    q, k, v = (leaf(ROWS, HEADS, TOKENS, 8, seed=s) for s in range(3))
    write, forget = (
        (20 * leaf(ROWS, HEADS, TOKENS, 1, seed=s)).detach().requires_grad_() for s in (3, 4)
    )
    log_forget = torch.nn.functional.logsigmoid(forget)
    state = (torch.zeros(ROWS, HEADS, 8, 9), torch.zeros(ROWS, HEADS, 1, 1))
    ours, (memory, largest) = mlstm_cell(8**-0.5 * q, k, v, write, log_forget, state)
    y, (c, n, m) = theirs.mlstm_recurrent_sequence_native(
        q, k, v, write.squeeze(-1), forget.squeeze(-1), return_last_states=True
    )
    close_gradients([ours], [y], [q, k, v, write, forget])
    # the state is divided by exp(m), which has no gradient of ours
    close(memory, torch.cat([c, n[..., None]], -1))
    close(largest, m[..., None])
