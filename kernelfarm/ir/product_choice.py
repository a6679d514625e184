"""Who computes products of matrices: a part of every request, and of its key."""

from __future__ import annotations

import enum


class ProductChoice(enum.StrEnum):
    """AUTO: whatever the chip's measured times say is faster, kernels or the framework's library.

    LIBRARY: the library computes all products. OWN: kernels compute every product that they can.
    """

    AUTO = "auto"
    LIBRARY = "library"
    OWN = "own"


def product_pairs(choice: ProductChoice) -> tuple[tuple[str, str], ...]:
    """The choice as pairs of text in a program's key; none by default, so that old keys stay."""
    return () if choice is ProductChoice.AUTO else (("products", choice.value),)
