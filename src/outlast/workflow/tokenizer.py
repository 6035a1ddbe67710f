"""A task's tokens as a tokenizer of transformers: a word for each token, or a byte.

``0 1 k3 =`` are four tokens of a task. There is no token for unknown words, so a word that the task
does not have is an error. A task over the bytes of a text has the bytes, then a boundary between
documents, then padding. The files are plain JSON in the format of the package `tokenizers`.
"""

from __future__ import annotations

from typing import Any

from outlast.tasks import Task
from outlast.tasks.base import PADDING
from outlast.tasks.text.task import Text
from outlast.tasks.text.tokenizer import Bytes

#: the most tokens that get a word each
MOST_WORDS = 100_000
#: what follows the bytes, in signs that no text has
AFTER_BYTES = ("<|boundary|>", "<|padding|>")


def tokenizer_files(task: Task) -> dict[str, Any]:
    """The content of each file of a task's tokenizer; nothing if its tokens are not words."""
    if isinstance(task, Text):
        return _byte_files() if isinstance(task.corpus.tokenizer, Bytes) else {}
    words = token_words(task)
    if words is None:
        return {}
    model = {
        "type": "WordLevel",
        "vocab": {word: token for token, word in enumerate(words)},
        "unk_token": "<unknown>",
    }
    named = {"pad_token": PADDING} if PADDING in words else {}
    return _files(model, {"type": "WhitespaceSplit"}, None, named)


def _byte_files() -> dict[str, Any]:
    """The bytes as tokens 0 to 255, then a boundary between documents and padding."""
    model = {"type": "BPE", "vocab": {s: b for b, s in enumerate(_byte_signs())}, "merges": []}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    boundary, padding = AFTER_BYTES
    named = {"bos_token": boundary, "eos_token": boundary, "pad_token": padding}
    return _files(model, level, level, named, AFTER_BYTES)


def _byte_signs() -> list[str]:
    """The sign of each byte in the format's files: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(Bytes.size, 2 * Bytes.size))
    return [chr(byte if byte in printable else next(others)) for byte in range(Bytes.size)]


def _files(
    model: dict[str, Any],
    splitter: dict[str, Any],
    decoder: dict[str, Any] | None,
    named: dict[str, str],
    added: tuple[str, ...] = (),
) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = len(model["vocab"])
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": first + number, "content": content, "special": True, **flags}
            for number, content in enumerate(added)
        ],
        "normalizer": None,
        "pre_tokenizer": splitter,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **named,
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}


def token_words(task: Task) -> list[str] | None:
    """The word of each token; None if two tokens share one, or if one has a space in it."""
    if task.vocabulary > MOST_WORDS:
        return None
    words = [task.word(token) for token in range(task.vocabulary)]
    distinct = len(set(words)) == len(words)
    return words if distinct and all(word.split() == [word] for word in words) else None
