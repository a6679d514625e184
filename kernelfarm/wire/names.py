"""Limits on names and texts in messages, because errors and logs quote them."""

from __future__ import annotations

from kernelfarm.bounded_text import quoted
from kernelfarm.errors import MalformedMessageError

MAX_NAME_CHARS = 256
"""For operators, symbols, attributes, kernels, parameters, targets."""

MAX_LABEL_CHARS = 1024
"""For debug names, such as an input's, which may be a path through a model's modules."""

MAX_TEXT_CHARS = 4096
"""For texts: arguments of operators, source locations, comments, facts about an environment."""


def checked_name(text: str, what: str, most: int = MAX_NAME_CHARS) -> str:
    """The text, if it is short enough.

    Raises:
        MalformedMessageError: it is longer than `most` characters.
    """
    if len(text) > most:
        raise MalformedMessageError(
            f"{what} of {len(text)} characters, {quoted(text)}; expected at most {most}"
        )
    return text
