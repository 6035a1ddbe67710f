"""Our recurrences against the torch code of transformers."""

import pytest
import torch

from outlast.kernels.linear_recurrence import delta_rule
from outlast.mixers.xlstm import mlstm_cell
from outlast.registry import mixers
from outlast.testing.compare import randn

pytest.importorskip("transformers")

ROWS, TOKENS, HEADS, WIDTH = 2, 150, 4, 16


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    """Theirs is in float32."""
    torch.testing.assert_close(one.double(), two.double(), rtol=1e-4, atol=1e-5)


def test_delta_rule_equals_that_of_transformers():
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    q, k, v = (randn(ROWS, HEADS, TOKENS, 8, seed=s).float() for s in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    beta = 2 * randn(ROWS, HEADS, TOKENS, 1, seed=3).float().sigmoid()
    log_decay = -randn(ROWS, HEADS, TOKENS, 1, seed=4).float().square()
    state = randn(ROWS, HEADS, 8, 8, seed=5).float()
    ours = delta_rule(8**-0.5 * q, k, v, beta, log_decay, state)
    for function in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        y, last = function(
            *(x.transpose(1, 2) for x in (q, k, v)),
            g=log_decay.squeeze(-1).transpose(1, 2),
            beta=beta.squeeze(-1).transpose(1, 2),
            initial_state=state,
            output_final_state=True,
        )
        close(ours[0], y.transpose(1, 2))
        close(ours[1], last)


def test_gated_deltanet_equals_the_layer_of_qwen3_next():
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    config = theirs.Qwen3NextConfig(
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
    layer = theirs.Qwen3NextGatedDeltaNet(config, 0)
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
    x = randn(ROWS, TOKENS, WIDTH).float()
    close(mixer(x)[0], layer(x))


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
    x = randn(ROWS, TOKENS, WIDTH).float()
    close(mixer(x)[0], layer(x))


def test_mlstm_equals_that_of_transformers():
    from transformers.models.xlstm import modeling_xlstm as theirs

    q, k, v = (randn(ROWS, HEADS, TOKENS, 8, seed=s).float() for s in range(3))
    write, forget = (20 * randn(ROWS, HEADS, TOKENS, 1, seed=s).float() for s in (3, 4))
    memory = torch.zeros(ROWS, HEADS, 8, 9)
    log_forget = torch.nn.functional.logsigmoid(forget)
    state = (memory, torch.zeros(ROWS, HEADS, 1, 1))
    ours, (memory, largest) = mlstm_cell(8**-0.5 * q, k, v, write, log_forget, state)
    y, (c, n, m) = theirs.mlstm_recurrent_sequence_native(
        q, k, v, write.squeeze(-1), forget.squeeze(-1), return_last_states=True
    )
    close(ours, y)
    close(memory, torch.cat([c, n[..., None]], -1))
    close(largest, m[..., None])
