"""The header of a package: what a reader checks before PyTorch unpickles the rest.

    SHA-256 of the rest, length of the header, header (JSON), body (zlib)

The body is what PyTorch pickles. This module needs no torch: commands describe a package by its
header.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from kernelfarm.client.disk.files import sealed_with_header, unsealed_with_header
from kernelfarm.digest import MAX_PART_CHARS
from kernelfarm.errors import MalformedMessageError

MAX_BODY_BYTES = 64 << 20
"""Of a body that is not compressed; that of a GPT-2 has 1 MB."""
MAX_FACTS = 50_000

_PART_NAME = re.compile(r"[a-z_]{1,32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """Lines of a module that PyTorch traced: from `first` up to, but without, `last`."""

    module: str
    first: int
    last: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The extents of one axis of an input for which a package was made; `most` may be None."""

    input: str
    axis: int
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class PackageHeader:
    """The header's fields.

    `parts` are the parts of the package's digest, and `facts` what some of them are digests of.
    `sources` are the lines that PyTorch traced. `ranges` are the sizes that may vary.
    """

    parts: Mapping[str, str]
    facts: Mapping[str, str] = field(repr=False)
    sources: tuple[RecordedSource, ...] = ()
    ranges: tuple[SizeRange, ...] = ()

    def to_json(self) -> str:
        """The header as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(content: bytes) -> PackageHeader:
        """The header of a text.

        Raises:
            ValueError: the text has other fields, or values of other types.
        """
        found = json.loads(content)
        if not isinstance(found, dict) or found.keys() != {f.name for f in fields(PackageHeader)}:
            raise ValueError("a header with other fields")
        parts, facts = found["parts"], found["facts"]
        if not (_are_texts(parts) and _are_texts(facts) and len(facts) <= MAX_FACTS):
            raise ValueError("a header whose parts or facts are not texts")
        if not all(_PART_NAME.fullmatch(n) and len(v) <= MAX_PART_CHARS for n, v in parts.items()):
            raise ValueError("a header with a part that is no short text")
        return PackageHeader(
            parts, facts, _records(found["sources"], _source), _records(found["ranges"], _range)
        )


def joined(header: PackageHeader, body: bytes) -> bytes:
    """The bytes of a package."""
    return sealed_with_header(header.to_json(), zlib.compress(body))


def retargeted(content: bytes, target: str) -> bytes:
    """The bytes of a package with the address of another target.

    Raises:
        MalformedMessageError: the bytes are not a package.
    """
    header, body = parted(content)
    moved = replace(header, parts={**header.parts, "target": target})
    return sealed_with_header(moved.to_json(), body)


def parted(content: bytes) -> tuple[PackageHeader, bytes]:
    """The header of a package, and its body as it is stored.

    Raises:
        MalformedMessageError: the bytes are not a package.
    """
    try:
        header, body = unsealed_with_header(content)
        return PackageHeader.from_json(header), body
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError(f"not a package: {error}") from error


def inflated(body: bytes) -> bytes:
    """The body of a package as PyTorch pickled it; at most `MAX_BODY_BYTES`.

    Raises:
        MalformedMessageError: it is not compressed, or larger.
    """
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(body, MAX_BODY_BYTES)
    except zlib.error as error:
        raise MalformedMessageError(f"not a package: {error}") from error
    if not reader.eof or reader.unused_data:
        raise MalformedMessageError(
            f"a package whose body is not one stream of at most {MAX_BODY_BYTES} bytes"
        )
    return found


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _records(value: Any, record: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > MAX_FACTS:
        raise ValueError("a header with a field that is no list, or too long")
    return tuple(map(record, value))


def _source(value: Any) -> RecordedSource:
    if not isinstance(value, dict) or value.keys() != {"module", "first", "last", "sha256"}:
        raise ValueError("a header with a source of other fields")
    source = RecordedSource(**value)
    is_valid = (
        isinstance(source.module, str)
        and _is_number(source.first)
        and _is_number(source.last)
        and isinstance(source.sha256, str)
        and _SHA256.fullmatch(source.sha256)
    )
    if not is_valid:
        raise ValueError("a header with a source that is not valid")
    return source


def _range(value: Any) -> SizeRange:
    if not isinstance(value, dict) or value.keys() != {"input", "axis", "least", "most"}:
        raise ValueError("a header with a range of other fields")
    found = SizeRange(**value)
    is_valid = isinstance(found.input, str) and _is_number(found.axis) and _is_number(found.least)
    if not is_valid or not (found.most is None or _is_number(found.most)):
        raise ValueError("a header with a range that is not valid")
    return found


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 0
