"""The corpus: a folder for each message type, with files of concatenated messages.

`corpus/<full name>/*.pbs.gz` hold valid messages, each preceded by its length (varint).
`corpus/regressions/<full name>/*.pb` hold one message each that once caused a failure.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from google.protobuf.message import Message

from tests.fuzz.messages import message_class

FOLDER = Path(__file__).with_name("corpus")
REGRESSIONS = FOLDER / "regressions"


@lru_cache(maxsize=64)
def seeds(full_name: str, name: str = "*") -> tuple[bytes, ...]:
    """Valid messages of a type, serialized, of one file or of all files of the type."""
    found: list[bytes] = []
    for path in sorted((FOLDER / full_name).glob(f"{name}.pbs.gz")):
        found += unpacked(gzip.decompress(path.read_bytes()))
    return tuple(found)


def write_seeds(name: str, messages: Iterable[Message]) -> int:
    """Writes distinct messages of one type to `<type>/<name>.pbs.gz`; returns the file's size."""
    by_bytes = {m.SerializeToString(deterministic=True): m.DESCRIPTOR.full_name for m in messages}
    (full_name,) = set(by_bytes.values())
    path = FOLDER / full_name / f"{name}.pbs.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(packed(by_bytes), 9, mtime=0))
    return path.stat().st_size


def regressions() -> list[tuple[str, Path]]:
    """(message type, file) of every input that once caused a failure."""
    return sorted((path.parent.name, path) for path in REGRESSIONS.glob("*/*.pb"))


def keep(full_name: str, data: bytes, folder: Path, label: str = "") -> Path:
    """Writes one input to a file named by its digest."""
    name = f"{label + '-' if label else ''}{hashlib.sha256(data).hexdigest()[:12]}.pb"
    path = folder / full_name / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def packed(messages: Iterable[bytes]) -> bytes:
    """Concatenated messages, each preceded by its length."""
    return b"".join(varint(len(data)) + data for data in messages)


def unpacked(data: bytes) -> Iterator[bytes]:
    """The messages of such a concatenation."""
    position = 0
    while position < len(data):
        length, shift = 0, 0
        while True:
            byte = data[position]
            length |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                break
        yield data[position : position + length]
        position += length


def varint(value: int) -> bytes:
    """A length as a varint."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def parsed(full_name: str) -> list[Message]:
    """The seeds of a type, parsed."""
    kind = message_class(full_name)
    return [kind.FromString(data) for data in seeds(full_name)]
