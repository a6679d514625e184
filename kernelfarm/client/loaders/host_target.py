"""The CPU target of this machine: the best that its processor runs, unless the settings name one.

`KERNELFARM_HOST_TARGET` sets another target, such as `cpu:x86-64-v3` on a processor with AVX-512,
to test the code of other machines or to share programs with them. A target that the processor does
not run is refused.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernelfarm.client.loaders import elf
from kernelfarm.client.loaders.sve_length import sve_vector_bytes
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import CallerError
from kernelfarm.targets import ProcessorFacts, TargetFacts, all_targets

_ELF_MACHINES = {"x86_64": elf.EM_X86_64, "AMD64": elf.EM_X86_64, "aarch64": elf.EM_AARCH64}


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor: its kind as the system names it, and its features and maker.

    Features and maker are as in /proc/cpuinfo; the maker is empty if it is not listed there.
    `sve_bytes` is the length of this process's SVE vectors; None: it has none.
    """

    name: str
    flags: frozenset[str]
    maker: str = ""
    sve_bytes: int | None = None

    @property
    def elf_machine(self) -> int | None:
        """The ELF machine of its libraries; None for a kind that the farm does not support."""
        return _ELF_MACHINES.get(self.name)

    def lacks(self, facts: TargetFacts) -> list[str]:
        """The features that a CPU target needs and this processor lacks."""
        needed = facts.section(ProcessorFacts)
        if needed.elf_machine != self.elf_machine:
            return [f"the instructions of {facts.arch}"]
        if needed.maker not in (None, self.maker):
            return [f"the maker {needed.maker}"]
        missing = sorted(set(needed.flags) - self.flags)
        if missing or not needed.has_scalable_vectors or needed.vector_bytes == self.sve_bytes:
            return missing
        found = self.sve_bytes or "none"
        return [f"SVE vectors of {needed.vector_bytes} bytes (here they have {found})"]

    def targets(self) -> tuple[str, ...]:
        """All CPU targets that the processor runs: widest vectors and most features first.

        Of equal ones, its maker's are first. Those for scalable vectors are last: no such processor
        was measured, and by LLVM's model Neoverse V1 is as fast with NEON.
        """
        fitting = []
        for facts in all_targets().values():
            needed = facts.processor
            if needed is not None and not self.lacks(facts):
                is_last = needed.has_scalable_vectors
                rank = (
                    is_last,
                    -needed.vector_bytes,
                    -len(needed.flags),
                    needed.maker is None,
                )
                fitting.append((rank, facts.name))
        return tuple(name for _, name in sorted(fitting))

    def target(self, requested: str = "") -> str:
        """A CPU target that the processor runs: the requested one, or the best.

        Raises:
            CallerError: the processor does not run the requested target, or runs no known one.
        """
        runs = self.targets()
        if requested in runs:
            return requested
        if not requested and runs:
            return runs[0]
        if not requested:
            raise CallerError(
                f"no CPU target runs on this {self.name} processor; expected x86-64 with AVX2 and"
                " FMA, or 64-bit Arm"
            )
        facts = all_targets().get(requested)
        why = "it is not a CPU target"
        if facts is not None and facts.processor is not None:
            why = f"this processor lacks {', '.join(self.lacks(facts))}"
        raise CallerError(
            f"KERNELFARM_HOST_TARGET={requested}: {why}; expected"
            f" {' or '.join(runs) or 'another machine'}; unset it for the best target"
        )


@lru_cache(maxsize=1)
def this_processor() -> Processor:
    """This machine's processor."""
    return read_processor(platform.machine(), _cpuinfo())


def read_processor(
    name: str, cpuinfo: str, sve_bytes: Callable[[], int | None] = sve_vector_bytes
) -> Processor:
    """The processor that the system calls `name`, from the text of its /proc/cpuinfo.

    `sve_bytes` finds the length of SVE vectors; it is asked only if the processor lists SVE.
    """
    flags = frozenset(_listed(cpuinfo, "flags", "Features").split())
    length = sve_bytes() if "sve" in flags else None
    return Processor(name, flags, _listed(cpuinfo, "vendor_id"), length)


def host_flags() -> frozenset[str]:
    """Features of this processor as /proc/cpuinfo names them."""
    return this_processor().flags


def processor_name() -> str:
    """The name of this machine's processor, as its maker states it; empty if it is not listed."""
    return _listed(_cpuinfo(), "model name", "Processor", "CPU part")


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8")


def _listed(cpuinfo: str, *keys: str) -> str:
    """The first value that a text lists for one of the keys; empty if it lists none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return ""


def host_cpu_target() -> str:
    """The CPU target that kernels for this machine are compiled for.

    Raises:
        CallerError: the processor runs no CPU target, or not the one of the settings.
    """
    return this_processor().target(client_settings().host_target)
