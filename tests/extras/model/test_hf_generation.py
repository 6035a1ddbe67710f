"""Generation in transformers: with the cache, in beams, with padding, as `Model.generate` does."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from outlast_models import HYBRID, LINES, model_of, tokens_of
from torch import Tensor
from transformers import DynamicCache

from outlast.errors import OutlastError, SpecError
from outlast.hf import OutlastCache, OutlastForCausalLM

NEW = 12


def wrapped_of(line: str = HYBRID) -> OutlastForCausalLM:
    return OutlastForCausalLM.from_model(model_of(line)).eval()


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of any length with padding on the left, and their mask."""
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for index, row in enumerate(rows):
        tokens[index, longest - len(row) :] = row
        mask[index, longest - len(row) :] = 1
    return tokens, mask


@pytest.mark.parametrize("line", LINES)
def test_greedy_generation_is_that_of_the_model(line: str) -> None:
    model, tokens = wrapped_of(line), tokens_of()
    wanted = model.model.generate(tokens, NEW)
    for use_cache in (True, False):
        generated = model.generate(tokens, max_new_tokens=NEW, do_sample=False, use_cache=use_cache)
        assert torch.equal(generated, wanted), f"use_cache={use_cache}"


@pytest.mark.parametrize("line", LINES)
def test_beams_are_the_same_with_and_without_the_cache(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[list[int]] = []
    select = OutlastCache.select

    def recorded(cache: OutlastCache, index: Tensor) -> None:
        orders.append(index.tolist())
        select(cache, index)

    monkeypatch.setattr(OutlastCache, "select", recorded)
    model, tokens = wrapped_of(line), tokens_of()
    how = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 4, "num_return_sequences": 2}
    beams = model.generate(tokens, **how)
    assert torch.equal(beams, model.generate(tokens, use_cache=False, **how))
    assert any(order != sorted(order) for order in orders), "no beam changed its place"


def test_sampling_is_the_same_with_and_without_the_cache() -> None:
    model, tokens, samples = wrapped_of(), tokens_of(), []
    for use_cache in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            samples.append(
                model.generate(tokens, max_new_tokens=NEW, do_sample=True, use_cache=use_cache)
            )
    assert torch.equal(*samples)


@torch.no_grad()
@pytest.mark.parametrize("line", LINES)
def test_chunks_with_the_cache_are_a_whole_pass(line: str) -> None:
    model, tokens = wrapped_of(line), tokens_of(2, 24)
    whole, cache, parts = model(tokens).logits, None, []
    for chunk in tokens.split([1, 7, 15, 1], 1):
        output = model(chunk, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    assert cache.get_seq_length() == 24
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=2e-5)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("line", LINES)
def test_padded_rows_generate_what_they_generate_alone(line: str, beams: int) -> None:
    model = wrapped_of(line)
    rows = [row[:length] for row, length in zip(tokens_of(4), (9, 3, 6, 3), strict=True)]
    tokens, mask = padded(rows)
    how = {"max_new_tokens": NEW, "do_sample": False, "num_beams": beams}
    together = model.generate(tokens, attention_mask=mask, **how)
    for index, row in enumerate(rows):
        alone = model.generate(row[None], **how)
        assert torch.equal(together[index, -NEW:], alone[0, -NEW:]), f"row {index}"


@torch.no_grad()
def test_padding_changes_no_logits() -> None:
    model, rows = wrapped_of(), [row[:n] for row, n in zip(tokens_of(2), (9, 4), strict=True)]
    tokens, mask = padded(rows)
    for left in (True, False):
        turned = (tokens, mask) if left else (tokens.roll(-5, 1), mask.roll(-5, 1))
        logits = model(
            torch.stack([tokens[0], turned[0][1]]),
            attention_mask=torch.stack([mask[0], turned[1][1]]),
        ).logits
        for index, row in enumerate(rows):
            place = slice(9 - len(row), None) if left else slice(len(row))
            wanted = model(row[None]).logits[0]
            torch.testing.assert_close(logits[index, place], wanted, rtol=0, atol=2e-5)


def test_model_with_drawn_positions_generates_as_without_transformers() -> None:
    model, tokens = wrapped_of(), tokens_of()
    model.model.span = 300
    generated = model.generate(tokens, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(generated, model.model.generate(tokens, NEW))
    rows = [tokens[0], tokens[1, :4]]
    together, mask = padded(rows)
    generated = model.generate(together, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    alone = model.model.generate(rows[1][None], NEW)
    assert torch.equal(generated[1, -NEW:], alone[0, -NEW:])


def test_conversation_goes_on_from_a_cache() -> None:
    model, tokens = wrapped_of(), tokens_of()
    how = {"do_sample": False, "return_dict_in_generate": True}
    first = model.generate(tokens, max_new_tokens=4, **how)
    longer = torch.cat([first.sequences, tokens[:, :3]], 1)
    cached = model.generate(
        longer, past_key_values=first.past_key_values, max_new_tokens=5, do_sample=False
    )
    assert torch.equal(cached, model.model.generate(longer, 5))


def test_outputs_that_are_no_tokens_are_not_generated() -> None:
    with pytest.raises(SpecError, match="head=3: expected an output for each of the 12 tokens"):
        wrapped_of("lstm @ 8, head=3").generate(tokens_of(), max_new_tokens=1)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3, 4), r"attention_mask=a tensor of shape \(3x4\).*: expected .*\(3, 9\)"),
        (torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1, 1]] * 3), "zeros between ones"),
        (torch.zeros(3, 9), "a row of padding alone"),
        (torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0, 0]] * 3), "padding on the right"),
    ],
)
def test_mask_that_cannot_be_honoured_is_refused(mask: Tensor, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        wrapped_of()(tokens_of(), attention_mask=mask, past_key_values=OutlastCache())


def test_padding_that_changes_between_passes_is_refused() -> None:
    model, mask = wrapped_of(), torch.ones(3, 9)
    mask[1, :2] = 0
    cache = model(tokens_of(), attention_mask=mask).past_key_values
    mask = torch.ones(3, 10)
    mask[2, 0] = 0
    with pytest.raises(SpecError, match=r"padding \[0, 0, 1\]: expected the padding of the"):
        model(tokens_of(3, 1), attention_mask=mask, past_key_values=cache)


def test_cache_of_another_model_is_refused() -> None:
    with pytest.raises(SpecError, match=r"past_key_values=.*expected an OutlastCache"):
        wrapped_of()(tokens_of(), past_key_values=DynamicCache())
    with pytest.raises(SpecError, match="cache_implementation=static: expected none"):
        wrapped_of().generate(tokens_of(), max_new_tokens=2, cache_implementation="static")


def test_cache_cannot_go_back() -> None:
    with pytest.raises(OutlastError, match="cannot be cropped"):
        OutlastCache().crop(1)
    with pytest.raises(ValueError, match="stateful"):
        wrapped_of().generate(tokens_of(1), max_new_tokens=4, prompt_lookup_num_tokens=2)


@torch.no_grad()
def test_rows_of_a_cache_are_selected_with_their_padding() -> None:
    model, mask = wrapped_of(), torch.ones(3, 9)
    mask[1, :2] = 0
    tokens, more = tokens_of(), tokens_of(3, 1)
    for index in ([2, 1, 0], [1, 1], [0, 0, 1, 1, 2, 2]):
        cache = model(tokens, attention_mask=mask).past_key_values
        cache.batch_select_indices(torch.tensor(index))
        assert cache.batch_size == len(index)
        logits = model(more[:1].expand(len(index), 1), past_key_values=cache).logits
        for row, old in enumerate(index):
            start = 2 if old == 1 else 0
            whole = torch.cat([tokens[old, start:], more[0]])[None]
            torch.testing.assert_close(
                logits[row, -1], model(whole).logits[0, -1], rtol=0, atol=1e-5
            )
