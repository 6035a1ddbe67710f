"""The README of an exported model: what it is, how it is loaded, what its tokens mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.tasks import Task
from outlast.tasks.text.task import Text

#: the most tokens that the table lists
MOST_LISTED = 1000

CARD = """---
library_name: transformers
tags: [outlast]
---
# {title}
A model of Outlast, a library for sequence models that keep working on sequences longer than those
they were trained on.

| | |
|---|---|
{facts}

```python
import outlast.hf  # registers the model type
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(FOLDER)
```
"""
ANSWERS = """
## How to read its outputs
The logits at a token are the answer that is due *at* that token. Nothing is shifted. Answers are
the first {classes} tokens. To train on, pass the targets of the task as `shift_labels=`, with
`labels=` too.
"""
TOKENS = """
## Tokens
{tokenizer}
```text
{table}
```
"""


def model_card(
    config: Mapping[str, Any],
    parameters: int,
    task: Task | None,
    run: tuple[str, int] | None,
    has_tokenizer: bool,
) -> str:
    """The text of the card. `run` is the name of the run folder and the seed."""
    facts = {
        "model": f"`{config['line']}`",
        "parameters": f"{parameters:,}",
        "task": f"`{config['task']}`" if config["task"] else "unknown",
        "run": "unknown" if run is None else f"{run[0]}, seed {run[1]}",
    }
    if config["gates"] is not None:
        facts["gates"] = f"not all open: {config['gates']}"
    if config["span"]:
        facts["positions"] = f"drawn from {config['span']} in training"
    cells = {name: value.replace("|", "\\|") for name, value in facts.items()}
    rows = "\n".join(f"| {name} | {cell} |" for name, cell in cells.items())
    card = CARD.format(title=run[0] if run else "Outlast model", facts=rows)
    if task is None:
        return card
    if isinstance(task, Text):  # of text: the logits are of the next token, as elsewhere
        return card + _tokens(task, has_tokenizer)
    return card + ANSWERS.format(classes=task.classes) + _tokens(task, has_tokenizer)


def _tokens(task: Task, has_tokenizer: bool) -> str:
    listed = min(task.vocabulary, MOST_LISTED)
    lines = [f"{token:>6}  {task.word(token)!s}" for token in range(listed)]
    if listed < task.vocabulary:
        lines.append(f"   ...  {task.vocabulary - listed:,} more")
    words = "The tokenizer in this folder has a word for each of them, with spaces between words."
    if isinstance(task, Text):
        words = "The tokenizer in this folder turns the bytes of a text into them."
    text = words if has_tokenizer else "This folder has no tokenizer: give the model numbers."
    return TOKENS.format(tokenizer=text, table="\n".join(lines))
