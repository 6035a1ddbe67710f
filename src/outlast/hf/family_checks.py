"""What delayed attention does in a hybrid of `transformers`, checked on a tiny model of the family.

Each check builds models of its own and returns a `Result`. No check raises because of the model: an
error is a result too.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from outlast.errors import SpecError
from outlast.methods.delay import Delay, delay, held_back

#: builds the same new model at each call
Builder = Callable[[], Any]
VOCABULARY = 64
#: where the effect of a gate is measured, attention's weights are larger, so that the small
#: constant in a norm does not matter
LARGER_ATTENTION = 10.0
#: embeddings are larger too, so that norms after the sum see a small change and hardly bend the
#: effect: by the first factor at which attention still changes the logits by a measurable share
LARGER_EMBEDDINGS, MEASURABLE = (1e4, 1e3, 1e2, 1e1, 1.0), 1e-3
#: how far the share of attention's effect may be from the gate; with a gate before a norm it is 1
SHARE_TOLERANCE = 0.05
#: the largest difference of logits between one pass and chunks
TOLERANCE = 1e-4
CHUNKS = (1, 7, 16)
NEW_TOKENS = 8


class Result(NamedTuple):
    """Whether a check passed, and a figure or the reason why not."""

    passed: bool
    detail: str = ""


def delayed(model: Any, **arguments: Any) -> Delay:
    """`delay`, also for a model without a recurrence."""
    return delay(model, recurrence=False, **arguments)


def check_found(build: Builder) -> Result:
    """All attention is found, the config agrees, and there is a recurrence."""
    modules = f"{len(delayed(build()).modules)} modules"
    try:
        delay(build())
    except SpecError as error:
        if "no recurrence found" not in str(error):
            raise
        reason = "no recurrence; with recurrence=False it works as the row says"
        return Result(False, f"{modules} found, but delay refuses: {reason}")
    return Result(True, modules)


def check_exact(build: Builder) -> Result:
    """In phase 1 attention changes no output, and AdamW does not change attention."""
    model = build()
    handle = delayed(model, switch=100)
    held = _attention_parameters(model, handle)
    before = [p.detach().clone() for p in held]
    optimiser = _train(model, handle, steps=2)
    if not all(torch.equal(p, was) for p, was in zip(held, before, strict=True)):
        return Result(False, "a weight of attention moved in phase 1")
    if any(p in optimiser.state for p in held):
        return Result(False, "the optimiser has a state for attention")
    model.eval()
    logits = _logits(model)
    with torch.no_grad():
        for p in held:
            p.add_(1.0)
    return _unless(torch.equal(_logits(model), logits), "logits follow attention's weights")


def check_ramp(build: Builder) -> Result:
    """The effect of attention follows the gate."""
    shares = ramp_shares(build)
    passed = all(abs(share - gate) <= SHARE_TOLERANCE for gate, share in shares.items())
    return Result(passed, ", ".join(f"{share:.2f}" for share in shares.values()))


def ramp_shares(build: Builder, where: Any = None) -> dict[float, float]:
    """The share of attention's full effect on the logits, by gate."""
    for larger_embedding in LARGER_EMBEDDINGS:
        logits = _logits_by_gate(build, where, larger_embedding)
        effects = {gate: float((out - logits[0.0]).norm()) for gate, out in logits.items()}
        if effects[1.0] >= MEASURABLE * float(logits[0.0].norm()):
            break
    return {gate: effects[gate] / effects[1.0] for gate in (0.5, 0.1)}


def _logits_by_gate(build: Builder, where: Any, larger_embedding: float) -> dict[float, Tensor]:
    model = build().eval()
    handle = delayed(model, where=where, mode="ramp", switch=1, ramp=10)
    with torch.no_grad():
        for p in _attention_parameters(model, handle):
            p.mul_(LARGER_ATTENTION)
        model.get_input_embeddings().weight.mul_(larger_embedding)
    logits = {0.0: _logits(model)}
    for tenth in range(1, 11):
        handle.step(1.0)
        if tenth in (1, 5, 10):
            logits[tenth / 10] = _logits(model)
    return logits


def check_resumes(build: Builder) -> Result:
    """A delay saved in phase 1 and restored into a new handle trains the same weights."""
    arguments: dict[str, Any] = {"mode": "ramp", "switch": 3, "ramp": 4}
    whole = build()
    _train(whole, delayed(whole, **arguments), steps=6)

    first = build()
    handle = delayed(first, **arguments)
    optimiser = _train(first, handle, steps=2)
    saved = json.loads(json.dumps(handle.state_dict()))

    second = build()
    second.load_state_dict(first.state_dict())
    restored = delayed(second, **arguments)
    restored.load_state_dict(saved)
    _train(second, restored, steps=4, optimiser_state=copy.deepcopy(optimiser.state_dict()))
    same = all(
        torch.equal(one, two)
        for one, two in zip(whole.state_dict().values(), second.state_dict().values(), strict=True)
    )
    return _unless(same, "weights differ from an uninterrupted training")


def check_saves(build: Builder) -> Result:
    """What is saved in phase 1 says so and loads into phase 1; after it nothing is left."""
    names = list(build().state_dict())
    model = build().eval()
    handle = delayed(model, switch=2)
    handle.step(1.0)
    with tempfile.TemporaryDirectory() as folder:
        loaded = _saved_and_loaded(model, Path(folder))
        if held_back(loaded) is None:
            return Result(False, "a model saved in phase 1 does not say so")
        saved = loaded.config.delayed_attention
        again = delayed(loaded, switch=2)
        again.load_state_dict(saved)
        if not torch.equal(_logits(loaded), _logits(model)):
            return Result(False, "a model saved in phase 1 is another one when loaded")
    handle.step(1.0)
    with tempfile.TemporaryDirectory() as folder:
        loaded = _saved_and_loaded(model, Path(folder))
        if held_back(loaded) is not None or list(model.state_dict()) != names:
            return Result(False, "something is left in the saved model")
        same = torch.equal(_logits(loaded), _logits(model))
    return _unless(same, "the loaded model differs")


def check_generates(build: Builder) -> Result:
    """Generation with a cache gives the tokens of generation without one, in both phases."""
    model = build().eval()
    model.generation_config.eos_token_id = None  # all of them, also the last
    handle = delayed(model, switch=1)
    prompt = tokens()[:, :6]
    for phase in ("phase 1", "phase 2"):
        with torch.no_grad():
            one, two = (
                model.generate(
                    prompt, max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=use_cache
                )
                for use_cache in (True, False)
            )
        if one.shape[1] != prompt.shape[1] + NEW_TOKENS or not torch.equal(one, two):
            return Result(False, f"cached generation differs in {phase}")
        handle.step(1.0)
    return Result(True)


def check_chunks(build: Builder) -> Result:
    """Logits in chunks with a cache are those of one pass. Attention is on."""
    worst = 0.0
    for chunk in CHUNKS:
        model = build().eval()
        whole, parts, cache = _logits(model), [], None
        with torch.no_grad():
            for part in tokens().split(chunk, dim=1):
                out = model(input_ids=part, past_key_values=cache, use_cache=True)
                cache = getattr(out, "past_key_values", None)
                if cache is None:
                    return Result(False, "the model returns no cache; its state is in the module")
                parts.append(out.logits)
        worst = max(worst, float((torch.cat(parts, 1) - whole).abs().max()))
    return _unless(worst <= TOLERANCE, f"logits differ by {worst:.0e}")


#: the columns of the table
CHECKS: dict[str, Callable[[Builder], Result]] = {
    "found": check_found,
    "delayed exactly": check_exact,
    "ramp scales": check_ramp,
    "resumes": check_resumes,
    "saves clean": check_saves,
    "generates": check_generates,
    "chunks = whole": check_chunks,
}


def run_checks(build: Builder) -> dict[str, Result]:
    """Every check. What the model raises is the reason."""
    results = {}
    for name, check in CHECKS.items():
        try:
            result = check(build)
        except Exception as error:  # any family may fail in a way of its own
            message = str(error).strip().splitlines() or [""]
            result = Result(False, f"{type(error).__name__}: {message[0]}")
        results[name] = result
    return results


def _unless(passed: bool, reason: str) -> Result:
    return Result(passed, "" if passed else reason)


def tokens() -> Tensor:
    """Two sequences of 24 tokens, always the same."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (2, 24), generator=generator)


def _logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=tokens(), use_cache=False).logits  # type: ignore[no-any-return]


def _attention_parameters(model: nn.Module, handle: Delay) -> list[nn.Parameter]:
    return [p for name in handle.modules for p in model.get_submodule(name).parameters()]


def _train(
    model: Any, handle: Delay, steps: int, optimiser_state: Any = None
) -> torch.optim.Optimizer:
    """A few steps of AdamW with weight decay."""
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    if optimiser_state is not None:
        optimiser.load_state_dict(optimiser_state)
    for _ in range(steps):
        loss = model(input_ids=tokens(), labels=tokens(), use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        handle.step(loss)
    return optimiser


def _saved_and_loaded(model: Any, folder: Path) -> Any:
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()
