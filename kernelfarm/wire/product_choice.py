"""Who computes products of matrices, as requests state it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.product_choice import MAX_NODE_CHOICES, NodeChoice, ProductChoice
from kernelfarm.v1 import compile_service_pb2 as pb

_ON_THE_WIRE = {
    ProductChoice.AUTO: pb.PRODUCT_CHOICE_UNSPECIFIED,
    ProductChoice.LIBRARY: pb.PRODUCT_CHOICE_LIBRARY,
    ProductChoice.OWN: pb.PRODUCT_CHOICE_OWN,
}
_CHOICES: dict[int, ProductChoice] = {n: choice for choice, n in _ON_THE_WIRE.items()}


def product_choice_to_proto(choice: ProductChoice) -> pb.ProductChoice.ValueType:
    """The choice as a field of a message."""
    return _ON_THE_WIRE[choice]


def product_choice_from_proto(number: int) -> ProductChoice:
    """The choice of a field.

    Raises:
        MalformedMessageError: there is no such choice.
    """
    found = _CHOICES.get(number)
    if found is None:
        expected = ", ".join(str(known) for known in sorted(_CHOICES))
        raise MalformedMessageError(f"choice {number} of products; expected one of {expected}")
    return found


def node_choices_to_proto(choices: Iterable[NodeChoice]) -> list[pb.NodeProductChoice]:
    """The choices of single products as a field of a message."""
    return [
        pb.NodeProductChoice(node=found.node, choice=product_choice_to_proto(found.choice))
        for found in choices
    ]


def node_choices_from_proto(messages: Sequence[pb.NodeProductChoice]) -> tuple[NodeChoice, ...]:
    """The choices of a field; whether the graph has such products is checked with the graph.

    Raises:
        MalformedMessageError: too many, or one that is neither the library nor kernels.
    """
    if len(messages) > MAX_NODE_CHOICES:
        raise MalformedMessageError(
            f"{len(messages)} choices of single products; expected at most {MAX_NODE_CHOICES}"
        )
    found = tuple(NodeChoice(m.node, product_choice_from_proto(m.choice)) for m in messages)
    for stated in found:
        if stated.choice is ProductChoice.AUTO:
            raise MalformedMessageError(
                f"no choice of the product of node {stated.node}; expected the library or kernels,"
                " or no entry"
            )
    return found
