"""The attention of other people's modules is what these modules compute."""

import pytest
import torch
from torch import Tensor, nn

import outlast
from outlast.analysis.foreign import watch_foreign
from outlast.errors import SpecError

QUERIES = torch.tensor([[3, 6], [0, -1]])


class Stream(nn.Module):
    def __init__(self, batch_first: bool = True, **asked: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.head = nn.Linear(8, 5)
        self.batch_first, self.asked = batch_first, asked
        self.seen: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x if self.batch_first else x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        y, self.seen = self.attention(x, x, x, attn_mask=mask, **self.asked)
        return self.head(y if self.batch_first else y.transpose(0, 1))


@pytest.mark.parametrize(
    "model",
    [
        Stream(),
        Stream(batch_first=False, need_weights=False),
        Stream(need_weights=True, average_attn_weights=False),
    ],
)
def test_rows_of_multihead_attention(model: Stream) -> None:
    tokens = torch.randint(5, (2, 7))
    model.train()
    expected = model(tokens).detach()
    given = model.seen
    seen = watch_foreign(model, tokens, QUERIES)
    torch.testing.assert_close(seen.logits, expected)
    assert (model.seen is None) == (given is None)
    if given is not None:
        torch.testing.assert_close(model.seen, given)
    x = model.embedding(tokens)
    q, k, _ = (x @ model.attention.in_proj_weight.T).unflatten(-1, (3, 2, 4)).unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(-1)
    torch.testing.assert_close(seen.weights["attention"][0], weights[0][:, [3, 6]])
    torch.testing.assert_close(seen.weights["attention"][1, :, 0], weights[1][:, 0])
    assert not seen.weights["attention"][1, :, 1].any()
    assert model.training
    assert not model.attention._forward_hooks
    assert not model.attention._forward_pre_hooks


def test_layers_of_torch_that_have_a_fused_path_are_seen() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(5, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 5))
    tokens = torch.randint(5, (2, 7))
    with torch.no_grad():
        expected = model.eval()(tokens)
    seen = watch_foreign(model, tokens, QUERIES)
    torch.testing.assert_close(seen.logits, expected)
    assert list(seen.weights) == ["1.layers.0.self_attn", "1.layers.1.self_attn"]
    for rows in seen.weights.values():
        torch.testing.assert_close(rows[0].sum(-1), torch.ones(2, 2))


def test_what_is_no_foreign_model_is_refused() -> None:
    tokens = torch.zeros(2, 7, dtype=torch.long)
    ours = outlast.model("attention(nope, heads=2) @ 8", outlast.task("parity"))
    for model in (ours, nn.Linear(2, 2), len):
        with pytest.raises(SpecError, match="model="):
            watch_foreign(model, tokens, QUERIES)
