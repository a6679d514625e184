"""Checks a kernel's shared library before a loader lets it in.

A library may be loaded only if it is for the loader's processor, loads no other library, runs no
code at load time, and imports only symbols of a closed list.
"""

from __future__ import annotations

from typing import Final

from kernelfarm.client.loaders import elf
from kernelfarm.errors import MalformedMessageError

OPENMP_SYMBOLS: Final = frozenset({"GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"})
LIBM_SYMBOLS: Final = frozenset({"fmod", "fmodf"})
MEMORY_SYMBOLS: Final = frozenset({"memcpy", "memmove", "memset", "malloc", "free"})
ALLOWED_SYMBOLS: Final = OPENMP_SYMBOLS | LIBM_SYMBOLS | MEMORY_SYMBOLS
FORBIDDEN_TAGS: Final = {
    elf.DT_NEEDED: "another library",
    elf.DT_RPATH: "a search path",
    elf.DT_RUNPATH: "a search path",
    elf.DT_INIT: "code at load time",
    elf.DT_FINI: "code at unload time",
    elf.DT_INIT_ARRAY: "code at load time",
    elf.DT_FINI_ARRAY: "code at unload time",
    elf.DT_PREINIT_ARRAY: "code at load time",
    elf.DT_TEXTREL: "relocations of its code",
    elf.DT_AUDIT: "an auditor",
    elf.DT_DEPAUDIT: "an auditor",
}


def check_library(binary: bytes, elf_machine: int | None, processor: str) -> elf.SharedLibrary:
    """The facts of a library, after checking that a processor's loader may load it.

    `elf_machine` is the ELF machine of the processor's libraries; None: it has none.

    Raises:
        MalformedMessageError: the library may not be loaded; the message says why.
    """
    facts = elf.read_shared_library(binary)
    if facts.machine != elf_machine:
        raise MalformedMessageError(
            f"the library is for ELF machine {facts.machine}, this one is {elf_machine} "
            f"({processor})"
        )
    foreign = sorted(facts.undefined - ALLOWED_SYMBOLS)
    if foreign:
        raise MalformedMessageError(
            f"the library imports {', '.join(foreign)}; kernels may import only "
            f"{', '.join(sorted(ALLOWED_SYMBOLS))}"
        )
    wants = sorted({FORBIDDEN_TAGS[tag] for tag in facts.dynamic_tags & FORBIDDEN_TAGS.keys()})
    if facts.has_interpreter:
        wants.append("an interpreter")
    if facts.has_ifunc:
        wants.append("functions chosen at load time")
    if facts.has_writable_code:
        wants.append("writable code")
    if wants:
        raise MalformedMessageError(
            f"the library has {', '.join(wants)}; a kernel's library must not"
        )
    return facts
