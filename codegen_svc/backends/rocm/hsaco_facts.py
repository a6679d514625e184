"""Reads the registers and memory of a kernel from the metadata note of an AMD code object."""

from __future__ import annotations

import io
from dataclasses import dataclass

import msgpack
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from kernelfarm.errors import InternalError


@dataclass(frozen=True, slots=True)
class HsacoFacts:
    """Vector registers per lane, spilled registers of both kinds, static LDS bytes, wave size.

    `max_group_size` is the most work items of a group for which the kernel was compiled.
    """

    vector_registers: int
    vector_spills: int
    scalar_spills: int
    static_shared_bytes: int
    max_group_size: int
    wave_size: int
    target: str


def read_hsaco(content: bytes, symbol: str) -> HsacoFacts:
    """The facts of one kernel of a code object.

    Raises:
        InternalError: the code object has no metadata for such a kernel.
    Source: "User Guide for AMDGPU Backend", code object metadata.
    """
    elf = ELFFile(io.BytesIO(content))
    section = elf.get_section_by_name(".note")
    if not isinstance(section, NoteSection):
        raise InternalError("the code object has no .note section")
    for note in section.iter_notes():
        if note["n_name"] != "AMDGPU":
            continue
        metadata = msgpack.unpackb(note["n_descdata"])
        for kernel in metadata["amdhsa.kernels"]:
            if kernel[".name"] == symbol:
                return _facts(kernel, metadata["amdhsa.target"])
    raise InternalError(f"the code object holds no metadata of kernel {symbol}")


def _facts(kernel: dict[str, int], target: str) -> HsacoFacts:
    return HsacoFacts(
        vector_registers=kernel[".vgpr_count"],
        vector_spills=kernel[".vgpr_spill_count"],
        scalar_spills=kernel[".sgpr_spill_count"],
        static_shared_bytes=kernel[".group_segment_fixed_size"],
        max_group_size=kernel[".max_flat_workgroup_size"],
        wave_size=kernel[".wavefront_size"],
        target=target,
    )
