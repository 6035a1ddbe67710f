"""α-entmax against the search by its definition, gradients included."""

import pytest
import torch
from torch.func import vmap

from outlast.kernels.entmax import entmax, entmax15, reference

ALPHAS = [1.05, 1.3, 1.5, 2.0, 3.0]


def scores(*shape: int, scale: float = 1.0) -> torch.Tensor:
    drawn = scale * torch.randn(*shape, dtype=torch.float64)
    return drawn.index_fill(-1, torch.tensor([shape[-1] - 1]), float("-inf"))


def close(one: torch.Tensor, two: torch.Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def compare(fast, slow, *inputs: torch.Tensor, tolerance: float = 1e-8) -> None:
    inputs = tuple(t.detach().requires_grad_() for t in inputs)
    one, two = fast(*inputs), slow(*inputs)
    close(one, two, tolerance)
    weighing = torch.randn(two.shape, dtype=two.dtype)
    grads = (torch.autograd.grad((y * weighing).sum(), inputs) for y in (one, two))
    for got, want in zip(*grads, strict=True):
        close(got, want, tolerance)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_entmax15_matches_the_reference(scale):
    compare(entmax15, lambda s: reference.entmax(s, 1.5), scores(3, 4, 9, scale=scale))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_entmax_matches_the_reference(alpha, scale):
    arguments = torch.full((4, 1), alpha, dtype=torch.float64)
    compare(entmax, reference.entmax, scores(3, 4, 9, scale=scale), arguments, tolerance=1e-6)


def test_gradient_in_alpha_matches_a_small_step():
    arguments, weighing = scores(5, 9), torch.randn(5, 9, dtype=torch.float64)

    def loss(alpha: torch.Tensor) -> torch.Tensor:
        return (entmax(arguments, alpha) * weighing).sum()

    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    step = (loss(alpha + 1e-6) - loss(alpha - 1e-6)) / 2e-6
    close(torch.autograd.grad(loss(alpha), alpha)[0], step, 1e-5)


@pytest.mark.parametrize("length", [1, 2, 500])
def test_weights_add_up_to_one_in_single_precision(length):
    arguments = 3 * torch.randn(4, length)
    for built in (entmax15(arguments), entmax(arguments, torch.tensor(1.7))):
        assert (built >= 0).all()
        torch.testing.assert_close(built.sum(-1), torch.ones(4), rtol=1e-4, atol=1e-4)


def test_equal_scores_share_evenly():
    close(entmax15(torch.zeros(1, 4).double()), torch.full((1, 4), 0.25).double())
    close(
        entmax(torch.zeros(1, 4).double(), torch.tensor(1.3).double())[0],
        torch.ones(4).double() / 4,
    )


def test_limits_are_softmax_and_sparsemax():
    arguments = torch.tensor([[0.3, 0.1, -0.2]], dtype=torch.float64)
    close(entmax(arguments, torch.tensor(1.0001).double()), arguments.softmax(-1), 1e-3)
    tau = (0.3 + 0.1 - 0.2 - 1) / 3
    close(entmax(arguments, torch.tensor(2.0).double()), arguments - tau)


def test_stacked_seeds_match_each_alone():
    arguments, alphas = scores(2, 3, 4, 9), 1.1 + torch.rand(2, 4, 1, dtype=torch.float64)

    def one_by_one(s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.stack([entmax(*pair) for pair in zip(s, a, strict=True)])

    compare(vmap(entmax), one_by_one, arguments, alphas)
    compare(vmap(entmax15), entmax15, arguments)
