"""The resource limits of one compilation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one compilation.

    `memory_bytes` limits the private memory of each process, and of all of them together;
    `processor_s` the processor time of each process; `file_bytes` each written file, and all of
    them together; `processes` the number of processes and threads; `output_bytes` the result.
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
