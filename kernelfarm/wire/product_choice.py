"""Who computes products of matrices, as requests state it."""

from __future__ import annotations

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.product_choice import ProductChoice
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
