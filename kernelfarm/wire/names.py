"""How long a name or a text in a message may be: errors quote them, and logs repeat those."""

from __future__ import annotations

from kernelfarm.errors import MalformedMessageError, quoted

MAX_NAME_CHARS = 256
"""Operators, symbols, attributes, kernels, parameters, targets."""

MAX_LABEL_CHARS = 1024
"""Names for people, such as an input's, which may be a path through a model's modules."""

MAX_TEXT_CHARS = 4096
"""Texts: arguments of operators, source locations, comments, facts about an environment."""


def checked_name(text: str, what: str, most: int = MAX_NAME_CHARS) -> str:
    """The text, if it is short enough.

    Raises:
        MalformedMessageError: it is longer.
    """
    if len(text) > most:
        raise MalformedMessageError(
            f"{what} of {len(text)} characters, {quoted(text)}; expected at most {most}"
        )
    return text
