"""Who computes products, on the wire."""

from __future__ import annotations

import pytest

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.v1.compile_service_pb2 import CompileOptions
from kernelfarm.wire.product_choice import (
    node_choices_from_proto,
    node_choices_to_proto,
    product_choice_from_proto,
    product_choice_to_proto,
)


@pytest.mark.parametrize("choice", list(ProductChoice))
def test_a_choice_is_read_as_it_was_written(choice: ProductChoice) -> None:
    options = CompileOptions(products=product_choice_to_proto(choice))
    assert product_choice_from_proto(options.products) is choice


def test_no_choice_is_the_default() -> None:
    assert product_choice_from_proto(CompileOptions().products) is ProductChoice.AUTO


@pytest.mark.parametrize("number", [3, -1, 2**31 - 1])
def test_a_choice_that_does_not_exist_is_refused(number: int) -> None:
    with pytest.raises(MalformedMessageError, match="expected one of 0, 1, 2"):
        product_choice_from_proto(number)


def test_choices_of_single_products_are_read_as_they_were_written() -> None:
    choices = (NodeChoice(0, ProductChoice.OWN), NodeChoice(9, ProductChoice.LIBRARY))
    options = CompileOptions(product_choices=node_choices_to_proto(choices))
    assert node_choices_from_proto(options.product_choices) == choices
