"""The last step: the Linalg text of a kernel becomes an object, or without CANN a stub.

A stub carries the text and the launch facts, and no code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from codegen_svc.backends.ascend.bishengir import TOOL, compile_linalg, find_bishengir
from codegen_svc.backends.ascend.elf_stub import write_elf
from codegen_svc.backends.stage_times import stage
from kernelfarm.ir.artifact import LaunchFacts, StageText

BINARY_STAGE = "kernel.o"
STUB_REASON = (
    f"no {TOOL} on this machine: the object carries the Linalg text, the tiling and the launch"
    " facts, and no code; it cannot run"
)
TILING = "tiling"
"""The extra launch fact that has the block sizes and the kind of cores, as JSON."""
# Triton-Ascend's launcher passes these arguments before and after a kernel's own.
_LEADING = ("scratch", "scratch")
_TRAILING = ("grid_x", "grid_y", "grid_z", "program_x", "program_y", "program_z")


@dataclass(frozen=True, slots=True)
class KernelObject:
    """A kernel's object file; `stub_reason` is empty if it has code."""

    binary: bytes
    stub_reason: str = ""

    def stage_text(self) -> StageText:
        """The object in the form of artifacts."""
        return StageText(BINARY_STAGE, self.binary, is_text=False)


def launched_arguments(*own: str) -> tuple[str, ...]:
    """A kernel's own arguments with those that Triton-Ascend's launcher adds."""
    return (*_LEADING, *own, *_TRAILING)


def kernel_object(
    linalg: str, launch: LaunchFacts, chip: str, *, is_double_buffered: bool
) -> KernelObject:
    """The object of a kernel for a chip, by the name that CANN gives the chip.

    `is_double_buffered`: there is room to fetch the next block while one is computed.

    Raises:
        KernelRejectedError: CANN's compiler refuses the kernel.
        UnavailableError: it cannot be run.
    """
    compiler = find_bishengir()
    with stage(BINARY_STAGE):
        if compiler is None:
            return KernelObject(_stub(linalg, launch), STUB_REASON)
        return KernelObject(
            compile_linalg(
                compiler, launch.symbol, linalg, chip, is_double_buffered=is_double_buffered
            )
        )


def _stub(linalg: str, launch: LaunchFacts) -> bytes:
    facts = {
        "arguments": list(launch.arguments),
        "grid": [str(extent) for extent in launch.grid],
        "local_bytes": launch.local_bytes,
        "symbol": launch.symbol,
    }
    return write_elf(
        launch.symbol,
        (
            (".kernelfarm.linalg", linalg.encode()),
            (".kernelfarm.tiling", dict(launch.extras)[TILING].encode()),
            (".kernelfarm.launch", json.dumps(facts, sort_keys=True).encode()),
            (".kernelfarm.stub", STUB_REASON.encode()),
        ),
    )
