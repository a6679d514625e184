"""Links an ELF object into a shared library with LLD.

LLD is part of Triton's wheel, which calls it to link AMD code objects. It takes the architecture
from the object, so one linker is enough for all processors of LLVM, and nothing else has to be
installed. See docs/adr/0001-shared-library-for-cpu-code.md.
"""

from __future__ import annotations

import tempfile
import threading
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from kernelfarm.errors import InternalError, UnavailableError

LINKER_REMEDY = "pip install 'triton==3.9.0'"
# LLD keeps its state in globals.
_lld_lock = threading.Lock()


@lru_cache(maxsize=1)
def _lld() -> Any:
    try:
        from triton._C.libtriton import amd  # noqa: PLC0415 - takes 0.1 s, needed by CPU workers only
    except ImportError as error:
        raise UnavailableError(f"the linker LLD is missing: {LINKER_REMEDY}") from error
    return amd


def linker_version() -> str:
    """The linker's version, as text.

    Raises:
        UnavailableError: triton is not installed.
    """
    _lld()
    return f"lld of triton {metadata.version('triton')}"


def link_shared(objects: bytes) -> bytes:
    """The shared library of one object; the same object gives the same bytes.

    Raises:
        UnavailableError: triton is not installed.
        InternalError: LLD refused the object.
    """
    lld = _lld()
    with tempfile.TemporaryDirectory(prefix="kernelfarm-link-") as folder:
        source, library = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        source.write_bytes(objects)
        try:
            with _lld_lock:
                lld.link_hsaco(str(source), str(library))
            return library.read_bytes()
        except (RuntimeError, OSError) as error:
            raise InternalError(f"LLD refused a kernel's object: {error}") from error
