"""What `outlast bench llama` compares: the same Llama with SDPA and RoPE, and with TRA."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from outlast.bench.timing import Side
from outlast.errors import MissingExtraError

NAMES = ("sdpa", "tra")
#: tokens of the pass whose logits are compared with float32 on the CPU
CHECKED = 256


@dataclass(frozen=True)
class Size:
    """A model, and how much of it is measured.

    Args:
        width: Of the residual stream; a head is 64 wide, or the whole width if that is less.
        layers: How many.
        vocabulary: Its embedding is tied to the output.
        batches: Length and batch size of the training steps.
        prompt: Tokens before what is generated.
        new: Tokens that are generated.
    """

    width: int
    layers: int
    vocabulary: int
    batches: tuple[tuple[int, int], ...]
    prompt: int
    new: int


#: 124 million parameters
LARGE = Size(768, 12, 50304, ((4096, 4), (16384, 1)), 16384, 64)
TINY = Size(32, 2, 64, ((64, 2),), 64, 4)


def build(size: Size, name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a side, always the same."""
    try:
        from transformers import AutoModelForCausalLM, LlamaConfig
    except ModuleNotFoundError as error:
        raise MissingExtraError("outlast bench llama", "transformers", "hf") from error

    from outlast.hf.tra import TraLlamaConfig, register

    register()
    config_class: Any = TraLlamaConfig if name == "tra" else LlamaConfig
    config = config_class(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.width * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=max(1, size.width // 64),
        max_position_embeddings=size.prompt + size.new,
        tie_word_embeddings=True,
        eos_token_id=None,  # every side generates as much
    )
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=name)
    return model.to(device, dtype)


def draw(size: Size, batch: int, length: int, device: torch.device) -> Tensor:
    """Random tokens."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (batch, length)
    return torch.randint(3, size.vocabulary, shape, device=device, generator=generator)


@contextmanager
def flash(device: torch.device) -> Iterator[None]:
    """On a GPU SDPA is flash attention or an error."""
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield


def mixed(model: Any) -> AbstractContextManager[object]:
    """On a GPU matmuls of float32 weights in bfloat16, as a Trainer with bf16=True has it."""
    weight = model.lm_head.weight
    on = weight.is_cuda and weight.dtype == torch.float32
    return torch.autocast(weight.device.type, torch.bfloat16, enabled=on)


def train_step(model: Any, tokens: Tensor) -> Side:
    """Forward pass, backward pass and AdamW."""
    model.train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=True if tokens.is_cuda else None
    )

    def step() -> None:
        optimiser.zero_grad()
        with flash(tokens.device), mixed(model):
            loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimiser.step()

    return step


def generation(model: Any, prompt: Tensor, new: int) -> Side:
    """`generate`: the prompt in one pass, then token by token, greedily."""
    model.eval()

    def run() -> Tensor:
        with flash(prompt.device):
            out: Tensor = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        return out

    return run


def one_token(model: Any, prompt: Tensor) -> Side:
    """One more token after a prompt that is in the cache."""
    from transformers import DynamicCache

    model.eval()
    cache = DynamicCache(config=model.config)
    with torch.no_grad(), flash(prompt.device):
        model(prompt, past_key_values=cache, logits_to_keep=1)

    def run() -> Tensor:
        with torch.no_grad(), flash(prompt.device):
            out: Tensor = model(prompt[:, :1], past_key_values=cache).logits
        cache.crop(-1)
        return out

    return run


@torch.no_grad()
def error(model: Any, size: Size) -> float:
    """The norm of the logits' difference from float32 on the CPU, over their norm."""
    model.eval()
    device = model.lm_head.weight.device
    tokens = draw(size, 1, min(CHECKED, size.prompt), torch.device("cpu"))
    with flash(device), mixed(model):
        logits = model(tokens.to(device), use_cache=False).logits
    truth = copy.deepcopy(model).cpu().float()(tokens, use_cache=False).logits
    return float((logits.cpu().float() - truth).norm() / truth.norm())
