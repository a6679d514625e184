"""Reads the facts of an ELF shared library that a loader checks before loading it.

Only 64-bit little-endian files are read. The file is not trusted: every offset is checked against
its length. A file that does not end exactly after the last part that its headers name is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kernelfarm.errors import MalformedMessageError

EM_X86_64, EM_AARCH64 = 62, 183
ET_DYN = 3
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
SHT_NOBITS, SHT_DYNSYM = 8, 11
_HEADER, _SEGMENT, _SECTION = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<IIQQQQIIQQ"
# Dynamic tags: other libraries to load, and code that runs at load time.
DT_NEEDED, DT_INIT, DT_FINI, DT_INIT_ARRAY, DT_FINI_ARRAY, DT_RPATH, DT_RUNPATH = (
    1,
    12,
    13,
    25,
    26,
    15,
    29,
)
DT_PREINIT_ARRAY, DT_TEXTREL, DT_AUDIT, DT_DEPAUDIT = 32, 22, 0x6FFFFEFC, 0x6FFFFEFB
STT_FUNC, STT_GNU_IFUNC = 2, 10


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """Facts of a shared library: machine, dynamic tags, imported and exported symbols."""

    machine: int
    dynamic_tags: frozenset[int]
    undefined: frozenset[str]
    functions: frozenset[str]
    has_interpreter: bool
    has_ifunc: bool
    has_writable_code: bool


def read_shared_library(data: bytes) -> SharedLibrary:
    """The facts of a library.

    Raises:
        MalformedMessageError: the bytes are not a 64-bit little-endian ELF shared library.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise MalformedMessageError(
            f"expected a 64-bit little-endian ELF file, got {len(data)} bytes that begin with "
            f"{data[:6].hex()!r}"
        )
    try:
        return _read(data)
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise MalformedMessageError(f"the ELF file is damaged: {error}") from error


def _read(data: bytes) -> SharedLibrary:
    header = _Header(*struct.unpack_from(_HEADER, data))
    if header.kind != ET_DYN:
        raise MalformedMessageError(
            f"expected a shared library (ELF type 3), got type {header.kind}"
        )
    sizes = header.header_size, header.segment_size, header.section_size
    if sizes != (64, 56, 64):
        raise ValueError(f"headers of {sizes} bytes; expected (64, 56, 64)")
    segments = [
        _Segment(*fields)
        for fields in _table(data, _SEGMENT, header.segment_offset, header.segment_count)
    ]
    sections = [
        _Section(*fields)
        for fields in _table(data, _SECTION, header.section_offset, header.section_count)
    ]
    _check_end(data, header, segments, sections)
    symbols = _dynamic_symbols(data, sections)
    dynamic = [_slice(data, s.offset, s.file_size) for s in segments if s.kind == PT_DYNAMIC]
    return SharedLibrary(
        machine=header.machine,
        dynamic_tags=frozenset(tag for part in dynamic for tag in _tags(part)),
        undefined=frozenset(s.name for s in symbols if not s.is_defined and s.name),
        functions=frozenset(s.name for s in symbols if s.is_defined and s.kind == STT_FUNC),
        has_interpreter=any(s.kind == PT_INTERP for s in segments),
        has_ifunc=any(s.kind == STT_GNU_IFUNC for s in symbols),
        has_writable_code=any(s.kind == PT_LOAD and s.flags & 3 == 3 for s in segments),
    )


@dataclass(frozen=True, slots=True)
class _Header:
    identity: bytes
    kind: int
    machine: int
    version: int
    entry: int
    segment_offset: int
    section_offset: int
    flags: int
    header_size: int
    segment_size: int
    segment_count: int
    section_size: int
    section_count: int
    names_index: int


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    kind: int
    is_defined: bool


def _table(data: bytes, form: str, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    return struct.iter_unpack(form, _slice(data, offset, count * struct.calcsize(form)))


def _check_end(
    data: bytes, header: _Header, segments: list[_Segment], sections: list[_Section]
) -> None:
    """Checks that the file ends exactly after the last part that its headers name.

    Raises:
        ValueError: the file is truncated, or has bytes after its end.
    """
    ends = [
        header.header_size,
        header.segment_offset + header.segment_count * header.segment_size,
        header.section_offset + header.section_count * header.section_size,
        *(segment.offset + segment.file_size for segment in segments),
        *(section.offset + section.size for section in sections if section.kind != SHT_NOBITS),
    ]
    if max(ends) != len(data):
        raise ValueError(f"its headers name {max(ends)} bytes, and it has {len(data)}")


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise ValueError(f"bytes {offset}..{offset + size} are outside its {len(data)} bytes")
    return data[offset : offset + size]


def _tags(dynamic: bytes) -> list[int]:
    whole = len(dynamic) // 16 * 16
    return [tag for tag, _ in struct.iter_unpack("<QQ", dynamic[:whole])]


def _dynamic_symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    table = [s for s in sections if s.kind == SHT_DYNSYM]
    if len(table) != 1 or table[0].link >= len(sections):
        raise ValueError(f"expected one dynamic symbol table, got {len(table)}")
    names_section = sections[table[0].link]
    names = _slice(data, names_section.offset, names_section.size)
    content = _slice(data, table[0].offset, table[0].size // 24 * 24)
    symbols = []
    for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", content):
        end = names.index(b"\0", name)
        symbols.append(_Symbol(names[name:end].decode("ascii"), info & 15, section != 0))
    return symbols
