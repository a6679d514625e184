"""The options of a request that change the code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelfarm.ir.flag_pairs import flag_pairs
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice, product_pairs


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The fields of `kernelfarm.v1.CompileOptions`; every field is part of the program key.

    `products` is the text of a `ProductChoice`. `product_choices` are (node, text of its choice).
    """

    is_deterministic: bool = False
    fallback_random: bool = False
    products: str = ProductChoice.AUTO.value
    product_choices: tuple[tuple[int, str], ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> CompileOptions:
        """The options of `dataclasses.asdict` after a way as JSON, which has no tuples."""
        choices = tuple((node, choice) for node, choice in fields["product_choices"])
        return cls(**{**fields, "product_choices": choices})

    @property
    def node_choices(self) -> tuple[NodeChoice, ...]:
        """Who computes single products."""
        return tuple(NodeChoice(node, ProductChoice(text)) for node, text in self.product_choices)

    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        """The options as program keys contain them: (field of the message, text), sorted."""
        flags = flag_pairs(
            is_deterministic=self.is_deterministic, fallback_random=self.fallback_random
        )
        return (*flags, *product_pairs(ProductChoice(self.products), self.node_choices))
