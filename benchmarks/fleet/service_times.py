"""The measured times from which the simulation is made, and their file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).with_name("service_times.json")


@dataclass(frozen=True, slots=True)
class ProgramTimes:
    """One program of the model: times of the stages in a farm with nothing else to do.

    `import_s` to `optimize_s` are times of child processes, `publish_s` that of the gateway.
    `compile_hit_s` is the gateway's processor time for a request that has the graph, if the program
    is in its memory. `kernels` are names. The client reads all binaries of a program
    (`binary_bytes`) in one call, which takes processor time of the gateway and of Redis.
    """

    name: str
    nodes: int
    import_s: float
    decompose_s: float
    optimize_s: float
    publish_s: float
    compile_hit_s: float
    kernels: tuple[str, ...]
    program_bytes: int
    binary_bytes: int
    read_binaries_s: float
    read_binaries_redis_s: float


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """All times in seconds; hits are the processor time of the gateway, or of Redis, for one call.

    `jobs_s` is the time of a worker for each kernel, with its sandbox and the publication;
    `between_jobs_s` is how long a worker process waits between two jobs.
    """

    machine: str
    target: str
    hit_in_memory_s: float
    hit_in_redis_s: float
    redis_get_s: float
    between_jobs_s: float
    jobs_s: dict[str, float]
    programs: tuple[ProgramTimes, ...]


def read_times(path: Path = FILE) -> ServiceTimes:
    """The service times of a file."""
    stored = json.loads(path.read_text())
    programs = tuple(
        ProgramTimes(**{**program, "kernels": tuple(program["kernels"])})
        for program in stored.pop("programs")
    )
    return ServiceTimes(**stored, programs=programs)


def write_times(times: ServiceTimes, path: Path = FILE) -> None:
    """Writes service times to a file."""
    path.write_text(json.dumps(asdict(times), indent=1) + "\n")
