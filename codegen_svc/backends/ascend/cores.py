"""Which cores of a chip a kernel needs, as the adapter states it in the Linalg text.

A chip has vector cores, and cube cores for matrix products, each with buffers of their own. A loop
kernel may need cube cores only if its tiling counts the bytes of their buffers.
"""

from __future__ import annotations

import re

from codegen_svc.emitters.triton.cube_tiling import CubeUse
from kernelfarm.errors import InternalError, KernelRejectedError
from kernelfarm.targets import CubeFacts, LocalBufferFacts, TargetFacts

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


def check_cores(name: str, linalg: str, use: CubeUse | None) -> str:
    """The kind of cores that a loop kernel needs; `use` is what its tiling takes of cube cores.

    Raises:
        KernelRejectedError: the kernel needs cube cores, which its tiling does not count.
        InternalError: the text does not state the kind.
    """
    cores = cores_of(name, linalg)
    if use is None and cores != "vector":
        raise KernelRejectedError(
            f"kernel {name} needs {cores} cores; its tiling is for vector cores alone. Leave the"
            " matrix product to the framework"
        )
    return cores


def cores_note(use: CubeUse, target: TargetFacts) -> str:
    """What a product takes of the chip, as a sentence."""
    cube, chip = target.section(CubeFacts), target.section(LocalBufferFacts)
    buffers = (
        ("L0A", use.l0a_bytes, cube.l0a_bytes),
        ("L0B", use.l0b_bytes, cube.l0b_bytes),
        ("L0C", use.l0c_bytes, cube.l0c_bytes),
        ("L1", use.l1_bytes, cube.l1_bytes),
        ("unified buffer", use.unified_buffer_bytes, chip.size_bytes),
    )
    sizes = ", ".join(f"{name} {used} of {limit} bytes" for name, used, limit in buffers)
    tiles = "" if use.core_tiles is None else f", up to {use.core_tiles} of {use.tiles} tiles each"
    return (
        f"a product on {use.cube_cores} of {cube.cores} cube cores and {use.vector_cores} of"
        f" {chip.vector_cores} vector cores{tiles}; {sizes}"
    )
