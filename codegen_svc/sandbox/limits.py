"""How much of the machine one compilation may use."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds of one compilation.

    `memory_bytes` bounds each process's private memory and all of them together; `processor_s` each
    process's processor time; `file_bytes` one written file and all of them together;
    `processes` processes and threads together; `output_bytes` what it may hand back.
    """

    memory_bytes: int
    processor_s: int
    file_bytes: int
    open_files: int
    processes: int
    output_bytes: int

    def to_json(self) -> str:
        """The limits as a zygote's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SandboxLimits:
        """The limits of an argument."""
        return cls(**json.loads(text))
