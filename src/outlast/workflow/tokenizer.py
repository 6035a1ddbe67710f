"""A task's tokens as a tokenizer of transformers: one word for each token.

``0 1 k3 =`` are four tokens of a task. The files are plain JSON in the format of the package
`tokenizers`. There is no token for unknown words, so a word that the task does not have is an
error.
"""

from __future__ import annotations

from typing import Any

from outlast.tasks import Task
from outlast.tasks.base import PADDING

#: the most tokens that get a word each
MOST_WORDS = 100_000


def tokenizer_files(task: Task) -> dict[str, Any]:
    """The content of each file of a task's tokenizer; nothing if its tokens are not words."""
    words = token_words(task)
    if words is None:
        return {}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if PADDING in words:
        settings["pad_token"] = PADDING
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: token for token, word in enumerate(words)},
            "unk_token": "<unknown>",
        },
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}


def token_words(task: Task) -> list[str] | None:
    """The word of each token; None if two tokens share one, or if one has a space in it."""
    if task.vocabulary > MOST_WORDS:
        return None
    words = [task.word(token) for token in range(task.vocabulary)]
    distinct = len(set(words)) == len(words)
    return words if distinct and all(word.split() == [word] for word in words) else None
