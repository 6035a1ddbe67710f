"""How many lines of code a function has, for `peers.py` and `peer_composer.py`."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable


def code_lines(function: Callable[..., object]) -> int:
    """Lines with code in the body of a function: not empty, no comment, no docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    body = definition.body[1:] if ast.get_docstring(definition) else definition.body
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*skipped, tokenize.ENDMARKER) and token.start[0] >= body[0].lineno:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)
