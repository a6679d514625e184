"""The flags of a request as texts in a program's key; client and farm write equal texts."""

from __future__ import annotations

_DETERMINISTIC = "ordered"
"""Not `True`: programs with that text in their keys combine floats in any order all the same."""


def flag_pairs(*, is_deterministic: bool, fallback_random: bool) -> tuple[tuple[str, str], ...]:
    """The flags as (field of the message, text), sorted."""
    return (
        ("deterministic", _DETERMINISTIC if is_deterministic else str(is_deterministic)),
        ("fallback_random", str(fallback_random)),
    )
