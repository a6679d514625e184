"""Options of requests: every field of the message is part of the program key."""

from __future__ import annotations

from frontend_svc.api.requests import options_of
from frontend_svc.flow.compile_options import CompileOptions
from kernelfarm.client.farm.compile_options import CompileOptions as ClientOptions
from kernelfarm.v1.compile_service_pb2 import CompileOptions as Message


def test_every_field_of_the_options_is_part_of_the_key() -> None:
    changed = {"deterministic": "True", "fallback_random": "True", "products": "library"}
    assert [field.name for field in Message.DESCRIPTOR.fields] == list(changed)
    usual = dict(options_of(Message()).key_pairs())
    assert usual == {"deterministic": "False", "fallback_random": "False"}
    for name, text in changed.items():
        pairs = dict(options_of(Message(**{name: 1})).key_pairs())
        assert pairs == {**usual, name: text}


def test_client_and_farm_agree_on_options_in_keys() -> None:
    for values in ((False, False), (False, True), (True, False), (True, True)):
        assert CompileOptions(*values).key_pairs() == ClientOptions(*values).pairs()
