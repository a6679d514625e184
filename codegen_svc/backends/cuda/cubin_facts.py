"""Reads the registers, stack and shared memory of a kernel from its cubin."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kernelfarm.errors import InternalError

# Attributes of `.nv.info` that carry a symbol's number and a 32-bit value (EIFMT_SVAL, format 4);
# names as `cuobjdump -elf` prints them.
_FORMAT_SIZED = 0x04
_REGCOUNT = 0x2F
_MIN_STACK_SIZE = 0x12


@dataclass(frozen=True, slots=True)
class CubinFacts:
    """Registers per thread, stack bytes per thread (spilled registers), static shared bytes."""

    registers: int
    stack_bytes: int
    static_shared_bytes: int


def read_cubin(content: bytes, symbol: str) -> CubinFacts:
    """The facts of one kernel of a cubin.

    Raises:
        InternalError: the cubin has no such kernel.
    """
    elf = ELFFile(io.BytesIO(content))
    table = elf.get_section_by_name(".symtab")
    info = elf.get_section_by_name(".nv.info")
    if not isinstance(table, SymbolTableSection) or info is None:
        raise InternalError("the cubin has no symbol table or no .nv.info section")
    number = next((i for i, s in enumerate(table.iter_symbols()) if s.name == symbol), None)
    if number is None:
        raise InternalError(f"the cubin holds no kernel {symbol}")
    values = _sized_attributes(info.data(), number)
    shared = elf.get_section_by_name(f".nv.shared.{symbol}")
    return CubinFacts(
        registers=values.get(_REGCOUNT, 0),
        stack_bytes=values.get(_MIN_STACK_SIZE, 0),
        static_shared_bytes=int(shared["sh_size"]) if shared is not None else 0,
    )


def _sized_attributes(data: bytes, symbol_number: int) -> dict[int, int]:
    """Attributes (format, code, length, symbol, value) that belong to one symbol."""
    found: dict[int, int] = {}
    position = 0
    while position + 4 <= len(data):
        form, code, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form != _FORMAT_SIZED:
            continue
        if size == 8:
            owner, value = struct.unpack_from("<II", data, position)
            if owner == symbol_number:
                found[code] = value
        position += size
    return found
