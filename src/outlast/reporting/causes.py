"""The causes of the failure anatomy in words."""

from __future__ import annotations

from outlast.runs.analyses import RetrievingHeads

#: from the bottom of a bar to its top
WORDS = {
    "right": "right",
    "state": "state wrong",
    "unfocused": "attention spread out",
    "key": "wrong key attended",
    "diluted": "right key, diluted",
    "value": "right key, value wrong",
    "output": "state or value right, output wrong",
    "no_attention": "no attention",
    "unread": "no probe reads the state",
}


def cause_sentence(
    cause: str, heads: RetrievingHeads | None, attended: int | None, source: int | None
) -> str:
    """A cause, and if it depends on the retrieving heads, which they are and where they look.

    Args:
        cause: One of `WORDS`.
        heads: The retrieving heads, if they are known.
        attended: The token that they look at most.
        source: The token that holds the answer.
    """
    words = WORDS[cause]
    if heads is None or attended is None or source is None:
        return words
    several = len(heads.heads) > 1
    numbers = ", ".join(map(str, heads.heads))
    who = f"{words}: the retrieving head{'s' * several} {numbers} of layer {heads.layer}"
    look = f"{who} {'together look' if several else 'looks'} most at"
    if cause == "unfocused":
        return f"{look} token {attended + 1}, but it stands out too little"
    if cause == "key":
        after = " or carried to the one after it" if heads.offset else ""
        return f"{look} token {attended + 1}, the answer is at token {source + 1}{after}"
    if cause in ("diluted", "value", "output"):
        return f"{look} the right token {attended + 1}"
    return words
