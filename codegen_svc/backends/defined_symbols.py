"""A check of the functions that a binary defines, made before the binary is signed."""

from __future__ import annotations

import io

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kernelfarm.errors import InternalError

ELF_MAGIC = b"\x7fELF"
# AMD's loader finds a kernel by its descriptor.
_DESCRIPTOR = ".kd"
# Mathematical functions of NVIDIA's library that a kernel calls.
_LIBRARY_PREFIX = "__nv_"
_MAX_SYMBOLS = 1 << 16


def check_defines(content: bytes, symbol: str) -> None:
    """Checks that an ELF binary defines this function and no other that a loader can find.

    Raises:
        InternalError: the function is missing or empty, there are others, or the content is no ELF
            binary.
    """
    sizes = _defined_globals(content)
    if not sizes.get(symbol):
        raise InternalError(
            f"the binary of kernel {symbol} does not define it; it defines"
            f" {', '.join(sorted(sizes)[:8]) or 'nothing'}. It is not signed"
        )
    allowed = {symbol, symbol + _DESCRIPTOR}
    others = sorted(
        name for name in sizes if name not in allowed and not name.startswith(_LIBRARY_PREFIX)
    )
    if others:
        raise InternalError(
            f"the binary of kernel {symbol} also defines {', '.join(others[:8])}; expected that"
            " function alone. It is not signed"
        )


def _defined_globals(content: bytes) -> dict[str, int]:
    """Size by name of each global symbol that the binary defines."""
    try:
        elf = ELFFile(io.BytesIO(content))
        header = elf.header
        if header["e_shoff"] + header["e_shnum"] * header["e_shentsize"] > len(content):
            raise ELFError("its section headers end beyond it")
        # By type: to find a section by its name, the library reads all sections.
        dynamic = next(elf.iter_sections("SHT_DYNSYM"), None)
        table = dynamic or next(elf.iter_sections("SHT_SYMTAB"), None)
        if not isinstance(table, SymbolTableSection):
            raise InternalError("the binary of a kernel has no symbol table. It is not signed")
        if table.num_symbols() > _MAX_SYMBOLS:
            raise InternalError(f"the binary of a kernel has {table.num_symbols()} symbols")
        return {
            symbol.name: symbol["st_size"]
            for symbol in table.iter_symbols()
            if symbol["st_info"]["bind"] == "STB_GLOBAL" and symbol["st_shndx"] != "SHN_UNDEF"
        }
    except (ELFError, ValueError, ArithmeticError, LookupError, AttributeError, OSError) as error:
        raise InternalError(f"the binary of a kernel is no ELF file: {error}") from error
