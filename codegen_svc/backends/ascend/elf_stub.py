"""A relocatable ELF object with texts in named sections and without code.

The machine is EM_NONE: the object has no instructions, and a loader might try to run an object that
names a machine. The kernel's name is a global symbol of no type at the start of the first section.

Source: System V ABI, edition 4.1, chapter 4 "Object Files"; ELF-64 Object File Format 1.5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HEADER_BYTES, _SECTION_BYTES, _SYMBOL_BYTES = 64, 64, 24
_ALIGNMENT = 8
_ET_REL, _EM_NONE, _EV_CURRENT = 1, 0, 1
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB = 1, 2, 3
_STB_GLOBAL_NOTYPE = 1 << 4
# ELF magic, 64-bit, little-endian, version 1, System V ABI.
_IDENTIFICATION = b"\x7fELF\x02\x01\x01" + bytes(9)


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    content: bytes
    link: int = 0
    info: int = 0
    entry_bytes: int = 0


def write_elf(symbol: str, sections: tuple[tuple[str, bytes], ...]) -> bytes:
    """The object: the given sections in order, then symbol and string tables."""
    payload = [_Section(name, _SHT_PROGBITS, content) for name, content in sections]
    strings = b"\0" + symbol.encode() + b"\0"
    symbols = bytes(_SYMBOL_BYTES) + struct.pack(
        "<IBBHQQ", 1, _STB_GLOBAL_NOTYPE, 0, 1, 0, len(payload[0].content)
    )
    string_table = len(payload) + 2
    tables = [
        # `info`: the first global symbol's number.
        _Section(".symtab", _SHT_SYMTAB, symbols, string_table, 1, _SYMBOL_BYTES),
        _Section(".strtab", _SHT_STRTAB, strings),
    ]
    every = [*payload, *tables]
    names, offsets = _name_table([s.name for s in every] + [".shstrtab"])
    every.append(_Section(".shstrtab", _SHT_STRTAB, names))
    return _assemble(every, offsets)


def _name_table(names: list[str]) -> tuple[bytes, list[int]]:
    table = b"\0"
    offsets = []
    for name in names:
        offsets.append(len(table))
        table += name.encode() + b"\0"
    return table, offsets


def _assemble(sections: list[_Section], name_offsets: list[int]) -> bytes:
    body = b""
    headers = bytes(_SECTION_BYTES)
    for section, name_offset in zip(sections, name_offsets, strict=True):
        body += bytes(-len(body) % _ALIGNMENT)
        offset = _HEADER_BYTES + len(body)
        headers += struct.pack(
            "<IIQQQQIIQQ",
            *(name_offset, section.kind, 0, 0, offset, len(section.content)),
            *(section.link, section.info, _ALIGNMENT, section.entry_bytes),
        )
        body += section.content
    body += bytes(-len(body) % _ALIGNMENT)
    return _header(len(sections) + 1, _HEADER_BYTES + len(body)) + body + headers


def _header(section_count: int, table_offset: int) -> bytes:
    return _IDENTIFICATION + struct.pack(
        "<HHIQQQIHHHHHH",
        *(_ET_REL, _EM_NONE, _EV_CURRENT, 0, 0, table_offset, 0),
        *(_HEADER_BYTES, 0, 0, _SECTION_BYTES, section_count, section_count - 1),
    )
