"""Messages quote little of what a client sends, and each fits into the trailers of gRPC."""

from __future__ import annotations

import pytest

from kernelfarm.bounded_text import MESSAGE_BYTES, bounded, quoted
from kernelfarm.errors import InvalidGraphError, error_facts
from kernelfarm.wire.status import status_details

TRAILERS_BYTES = 8192


def test_a_short_message_stays_as_it_is() -> None:
    for message in ("", "node 3 (aten.add)", "two\n\tlines", "größer", "x" * MESSAGE_BYTES):
        assert bounded(message) == message
        assert str(InvalidGraphError(message)) == message


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\0", "\x1b", "\u202e", "\ud800", "%"])
@pytest.mark.parametrize("size", [600, 1_025, 9_000, 5_000_000])
def test_a_long_message_is_cut_in_its_middle_and_fits_into_trailers(letter: str, size: int) -> None:
    facts = error_facts(InvalidGraphError(f"begin {letter * size} end"))
    data = facts.message.encode()
    assert len(data) <= MESSAGE_BYTES
    assert facts.message.startswith("begin") and facts.message.endswith("end")
    assert facts.message.isprintable()
    percent_encoded = sum(1 if 0x20 <= b <= 0x7E and b != 0x25 else 3 for b in data)
    in_base64 = len(status_details(facts, "r" * 128)) * 4 // 3
    assert percent_encoded + in_base64 < TRAILERS_BYTES - 1024
    assert bounded(facts.message) == facts.message


def test_a_cut_message_says_how_much_is_left_out() -> None:
    cut = bounded("a" * 3_000)
    head, _, tail = cut.partition(" ...[")
    left_out = int(tail.partition(" ")[0])
    assert left_out + cut.count("a") - " characters left out".count("a") == 3_000
    assert head == "a" * len(head)


def test_quotes_are_short_and_on_one_line() -> None:
    assert quoted("a\nb") == r"'a\nb'"
    assert len(quoted("x" * 10**7)) < 250 and "10000000 characters" in quoted("x" * 10**7)
