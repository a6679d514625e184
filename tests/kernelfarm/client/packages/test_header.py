"""The form of a package: what is not one is refused, and its body is bounded."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from kernelfarm.client.disk.files import sealed
from kernelfarm.client.packages import header as form
from kernelfarm.client.packages.header import (
    PackageHeader,
    RecordedSource,
    SizeRange,
    inflated,
    joined,
    parted,
    retargeted,
)
from kernelfarm.errors import MalformedMessageError

HEADER = PackageHeader(
    {"target": "cpu:x86-64-v3", "torch": "2.13.0"},
    {"module ": "tests:Model"},
    (RecordedSource("tests", 1, 4, "ab" * 32),),
    (SizeRange("input [0][0]", 0, 2, None),),
)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A package whose header was changed before it was sealed."""
    stated = json.loads(HEADER.to_json())
    change(stated)
    text = json.dumps(stated).encode()
    return sealed(len(text).to_bytes(8, "little") + text + zlib.compress(b"body"))


def test_a_package_is_read_as_it_was_written() -> None:
    header, body = parted(joined(HEADER, b"body"))
    assert (header, inflated(body)) == (HEADER, b"body")
    other, same = parted(retargeted(joined(HEADER, b"body"), "cpu:aarch64"))
    assert other.parts == {**HEADER.parts, "target": "cpu:aarch64"}
    assert (other.facts, other.sources, same) == (HEADER.facts, HEADER.sources, body)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another field": lambda h: h.update(code="print()"),
    "a missing field": lambda h: h.pop("ranges"),
    "a part that is no text": lambda h: h["parts"].update(torch=2),
    "a part with a long text": lambda h: h["parts"].update(torch="2" * 201),
    "a part with another name": lambda h: h["parts"].update({"A b": ""}),
    "a fact that is no text": lambda h: h["facts"].update(module=[]),
    "a source of other fields": lambda h: h["sources"][0].update(path="/"),
    "a source of no module": lambda h: h["sources"][0].update(module=None),
    "a source of negative lines": lambda h: h["sources"][0].update(first=-1),
    "a source with another digest": lambda h: h["sources"][0].update(sha256="AB" * 32),
    "a range of a text": lambda h: h["ranges"][0].update(least="2"),
    "ranges that are no list": lambda h: h.update(ranges={}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_header_of_another_form_is_refused(change: str) -> None:
    with pytest.raises(MalformedMessageError, match="not a package: a header"):
        parted(changed(CHANGES[change]))


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_damaged_package_is_refused(cut: int) -> None:
    with pytest.raises(MalformedMessageError, match="not a package"):
        parted(joined(HEADER, b"body" * 99)[:-cut])


def test_a_body_is_not_inflated_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "MAX_BODY_BYTES", 1000)
    assert len(inflated(zlib.compress(bytes(1000)))) == 1000
    with pytest.raises(MalformedMessageError, match="at most 1000 bytes"):
        inflated(zlib.compress(bytes(1001)))
    for other in (zlib.compress(b"body") + b"more", zlib.compress(b"body")[:-2], b"no zlib"):
        with pytest.raises(MalformedMessageError, match=r"not a package|whose body"):
            inflated(other)
