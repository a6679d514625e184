"""Compile options of a request: they change the generated code."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.flag_pairs import flag_pairs
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice, product_pairs


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of a compilation; every field is part of the program key.

    `is_deterministic`: results do not depend on scheduling; calls run the framework's operators
    with its deterministic kernels. `fallback_random`: the framework draws
    random numbers, so that they equal those of eager execution; otherwise kernels compute them,
    with equal numbers on every device, fused with other operators. `products`: who computes
    products of matrices. `node_choices`: who computes the products of single captured nodes, in
    ascending order of the nodes.
    """

    is_deterministic: bool = False
    fallback_random: bool = False
    products: ProductChoice = ProductChoice.AUTO
    node_choices: tuple[NodeChoice, ...] = ()

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The options as pairs of text, sorted by name, for a key."""
        flags = flag_pairs(
            is_deterministic=self.is_deterministic, fallback_random=self.fallback_random
        )
        return (*flags, *product_pairs(self.products, self.node_choices))
