"""The options of a request that change the code."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.product_choice import ProductChoice, product_pairs


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The fields of `kernelfarm.v1.CompileOptions`; every field is part of the program key.

    `products` is the text of a `ProductChoice`.
    """

    is_deterministic: bool = False
    fallback_random: bool = False
    products: str = ProductChoice.AUTO.value

    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        """The options as program keys contain them: (field of the message, text), sorted."""
        flags = (
            ("deterministic", str(self.is_deterministic)),
            ("fallback_random", str(self.fallback_random)),
        )
        return (*flags, *product_pairs(ProductChoice(self.products)))
