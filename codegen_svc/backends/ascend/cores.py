"""Which cores of a chip a kernel needs, as the adapter states it in the Linalg text.

A chip has vector cores, and cube cores for matrix products, each with buffers of their own. The
tiling of loop kernels counts the bytes of a vector core's buffer alone, so a loop kernel that needs
cube cores is refused. The farm has none: matrix products are steps of the framework.
"""

from __future__ import annotations

import re

from kernelfarm.errors import InternalError, KernelRejectedError

_MIX_MODE = re.compile(r'mix_mode\s*=\s*"([^"]*)"')
_CORES = {"aiv": "vector", "aic": "cube", "mix": "cube and vector"}


def cores_of(name: str, linalg: str) -> str:
    """The kind of cores that a kernel needs: `vector`, `cube`, or `cube and vector`.

    Raises:
        InternalError: the text does not state the kind.
    """
    found = _MIX_MODE.search(linalg)
    if found is None or found[1] not in _CORES:
        stated = "no mix_mode" if found is None else f"mix_mode {found[1]!r}"
        raise InternalError(f"the adapter stated {stated} for kernel {name}; expected {_CORES}")
    return _CORES[found[1]]


def require_vector_cores(name: str, linalg: str) -> str:
    """The kind of cores that a kernel needs, `vector`.

    Raises:
        KernelRejectedError: the kernel needs cube cores.
        InternalError: the text does not state the kind.
    """
    cores = cores_of(name, linalg)
    if cores != "vector":
        raise KernelRejectedError(
            f"kernel {name} needs {cores} cores; the tiling is for vector cores alone. Leave the"
            " matrix product to the framework"
        )
    return cores
