"""What every mixer, every scheme of attention and every preset must hold to."""

import pytest
import torch
from subjects import CLASSES, MIXERS, MODELS, SUBJECTS, TOKENS, VOCABULARY, Subject
from torch import nn
from torch.func import functional_call, vmap

from outlast.errors import OutlastError
from outlast.methods.base import PATHWAYS
from outlast.mixers import Mixer
from outlast.models.build import build_model, canonical_layout
from outlast.registry import mixers
from small_attention import check_each_seed_alone, stacked_weights
from small_attention import close as close_to

every = pytest.mark.parametrize("subject", SUBJECTS, ids=[s.spec for s in SUBJECTS])
every_mixer = pytest.mark.parametrize("subject", MIXERS, ids=[s.spec for s in MIXERS])
every_model = pytest.mark.parametrize("subject", MODELS, ids=[s.spec for s in MODELS])

CHUNKS = {
    "token by token": [1] * TOKENS,
    "two": [3, 4],
    "the last alone": [6, 1],
    "the first alone": [1, 6],
    "three": [2, 2, 3],
}


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    close_to(one, two, atol=1e-11)


def in_chunks(module: nn.Module, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    state, outputs = None, []
    for chunk in x.split(sizes, 1):
        y, state = module(chunk, state)
        outputs.append(y)
    return torch.cat(outputs, 1)


@every
def test_shapes_and_precision(subject: Subject):
    x = subject.input()
    y, _ = subject.make()(x)
    assert y.shape == (*x.shape[:2], VOCABULARY if subject.whole_model else subject.width)
    assert y.dtype == torch.float64
    assert y.isfinite().all()
    single = x if subject.whole_model else x.float()
    low, _ = subject.make().float()(single)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), y, rtol=1e-3, atol=1e-4)


@every
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS.keys())
def test_chunks_equal_the_whole(subject: Subject, sizes):
    module, x = subject.make(), subject.input()
    close(in_chunks(module, x, sizes), module(x)[0])


@every
def test_state_can_be_used_twice(subject: Subject):
    module, x = subject.make(), subject.input()
    _, state = module(x[:, :3])
    once = module(x[:, 3:], state)[0]
    module(subject.change(x, 4)[:, 3:], state)
    close(module(x[:, 3:], state)[0], once)


@every
@pytest.mark.parametrize("token", [0, 3, TOKENS - 1])
def test_token_changes_later_outputs_and_no_earlier_ones(subject: Subject, token):
    module, x = subject.make(), subject.input()
    before, after = module(x)[0], module(subject.change(x, token))[0]
    close(after[:, :token], before[:, :token])
    assert not torch.allclose(after[:, token:], before[:, token:])


@every
def test_permuting_the_batch_permutes_the_output(subject: Subject):
    module, x = subject.make(), subject.input()
    order = torch.tensor([2, 0, 1])
    close(module(x[order])[0], module(x)[0][order])


@every
def test_output_is_deterministic_without_global_random_state(subject: Subject):
    module, x = subject.make(), subject.input()
    before = torch.get_rng_state()
    assert torch.equal(module(x)[0], module(x)[0])
    assert torch.equal(before, torch.get_rng_state()), "the global random state was touched"


@every
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shared", [False, True], ids=["own input", "one input for all"])
def test_stacked_seeds_equal_each_seed_alone(subject: Subject, shared, no_vmap_fallback):
    copies = [subject.make(seed) for seed in range(3)]
    stacked = stacked_weights(copies)
    inputs = subject.input() if shared else torch.stack([subject.input(seed=s) for s in range(3)])

    def one(weights, x):
        return functional_call(copies[0], weights, (x,))[0]

    together = vmap(one, in_dims=(0, None if shared else 0))(stacked, inputs)
    check_each_seed_alone(
        together, stacked, copies, lambda s: copies[s](inputs if shared else inputs[s])[0]
    )


@every
@torch.no_grad()
def test_long_input_works_or_names_the_ceiling(subject: Subject):
    module = subject.make()
    long = subject.input(tokens=700, rows=1)
    if module.ceiling is None:
        assert module(long)[0].isfinite().all()
        return
    end = module.ceiling
    assert module(subject.input(tokens=end, rows=1))[0].isfinite().all()
    beyond = subject.input(tokens=end + 1, rows=1)
    _, state = module(beyond[:, :end])
    for call in (lambda: module(beyond), lambda: module(beyond[:, end:], state)):
        with pytest.raises(OutlastError, match=rf"at most {end} tokens, got {end + 1}"):
            call()


@every
def test_bfloat16_autocast_is_close_to_float32(subject: Subject):
    module, x = subject.make().float(), subject.input()
    x = x if subject.whole_model else x.float()
    with torch.autocast("cpu", torch.bfloat16):
        low, _ = module(x)
    torch.testing.assert_close(low.float(), module(x)[0], rtol=0.1, atol=0.1)


@every_mixer
def test_spec_of_a_mixer_builds_the_same_mixer(subject: Subject):
    mixer = subject.make()
    assert isinstance(mixer, Mixer)
    assert mixer.pathway in PATHWAYS
    again = mixers.build(str(mixer.spec), width=subject.width)
    assert again.spec == mixer.spec == mixers.canonical(subject.spec)
    shapes = {n: p.shape for n, p in mixer.state_dict().items()}
    assert {n: p.shape for n, p in again.state_dict().items()} == shapes


@every_model
def test_written_out_preset_builds_the_same_model(subject: Subject):
    model = subject.make()
    line = str(model.layout)
    assert str(canonical_layout(line)) == line
    assert subject.spec not in line.replace("(", " ").split()
    again = build_model(line, VOCABULARY, CLASSES, seed=0).double()
    close(again(subject.input())[0], model(subject.input())[0])


def test_known_mixers_schemes_and_presets_are_subjects():
    tested = " ".join(s.spec for s in SUBJECTS)
    for name in ("lstm", "gru", "mlp", "attention", "rope", "learned", "serial", "parallel"):
        assert name in tested
