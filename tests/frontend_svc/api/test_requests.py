"""Options of requests: every field of the message is part of the program key."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from frontend_svc.api.requests import options_of
from frontend_svc.flow.compile_options import CompileOptions
from kernelfarm.client.farm.compile_options import CompileOptions as ClientOptions
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.v1.compile_service_pb2 import CompileOptions as Message
from kernelfarm.v1.compile_service_pb2 import NodeProductChoice


def test_every_field_of_the_options_is_part_of_the_key() -> None:
    choices = [NodeProductChoice(node=n, choice=n % 2 + 1) for n in (0, 7)]
    changed = {
        "deterministic": (True, "ordered"),
        "fallback_random": (True, "True"),
        "products": (1, "library"),
        "product_choices": (choices, "0:library 7:own"),
    }
    assert [field.name for field in Message.DESCRIPTOR.fields] == list(changed)
    usual = dict(options_of(Message()).key_pairs())
    assert usual == {"deterministic": "False", "fallback_random": "False"}
    for name, (value, text) in changed.items():
        pairs = dict(options_of(Message(**{name: value})).key_pairs())
        assert pairs == {**usual, name: text}


def test_client_and_farm_agree_on_options_in_keys() -> None:
    for values in ((False, False), (False, True), (True, False), (True, True)):
        assert CompileOptions(*values).key_pairs() == ClientOptions(*values).pairs()
    choices = (NodeChoice(1, ProductChoice.OWN), NodeChoice(3, ProductChoice.LIBRARY))
    farm = CompileOptions(products="own", product_choices=((1, "own"), (3, "library")))
    client = ClientOptions(products=ProductChoice.OWN, node_choices=choices)
    assert farm.key_pairs() == client.pairs()
    assert list(client.pairs()) == sorted(client.pairs())


def test_options_are_the_same_after_a_way_as_json() -> None:
    options = CompileOptions(True, product_choices=((1, "own"), (3, "library")))
    assert CompileOptions.from_json(json.loads(json.dumps(asdict(options)))) == options


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([NodeProductChoice(node=1)], "of node 1; expected the library or kernels"),
        ([NodeProductChoice(node=1, choice=7)], "choice 7 of products; expected one of 0, 1, 2"),
        ([NodeProductChoice(choice=1)] * 4097, "4097 choices .* expected at most 4096"),
    ],
)
def test_choices_that_cannot_be_meant_are_refused(
    choices: list[NodeProductChoice], message: str
) -> None:
    with pytest.raises(MalformedMessageError, match=message):
        options_of(Message(product_choices=choices))
