"""The rights that a child gives up before it sees a kernel, in an order that allows each step."""

from __future__ import annotations

import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codegen_svc.sandbox import seccomp
from codegen_svc.sandbox.landlock import landlock_version, restrict_files
from codegen_svc.sandbox.level import ConfinementLevel, Mechanism
from codegen_svc.sandbox.limits import SandboxLimits
from codegen_svc.sandbox.namespaces import (
    enter_process_namespace,
    enter_shared_namespaces,
    limit_namespace_processes,
)
from codegen_svc.sandbox.system_calls import (
    adopt_orphans,
    be_no_dump,
    deny_new_privileges,
    die_with_parent,
    drop_capabilities,
    install_filter,
)

MAX_REUSED_PROCESSOR_S: Final = 10
"""A process that has used more processor time takes no further job."""

# Address space that is reserved but not used: libraries, stacks and heaps of threads.
_RESERVED_BYTES: Final = 16 << 30


@dataclass(frozen=True, slots=True)
class Confinement:
    """The rights of a child: files by path, programs, and resource limits."""

    level: ConfinementLevel
    limits: SandboxLimits
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    may_start_programs: bool
    takes_many_jobs: bool


def reached_level() -> ConfinementLevel:
    """The mechanisms that this host offers; tries each in a process of its own.

    Call it only in a process with one thread, because it forks.
    """
    trials: dict[Mechanism, Callable[[], None]] = {
        Mechanism.NAMESPACES: _try_namespaces,
        Mechanism.LANDLOCK: _try_landlock,
        Mechanism.SECCOMP: _try_seccomp,
        Mechanism.LIMITS: lambda: None,
    }
    return ConfinementLevel(frozenset(m for m, trial in trials.items() if _works(trial)))


def confine(confinement: Confinement, work_folder: Path) -> None:
    """Restricts this process, and all that it starts, for ever.

    Raises:
        OSError: a mechanism of the level fails.
    """
    mechanisms, limits = confinement.level.mechanisms, confinement.limits
    die_with_parent(signal.SIGKILL)
    os.setpgid(0, 0)  # no session of its own: see `kernelfarm.service.priority`
    if Mechanism.NAMESPACES in mechanisms:
        limit_namespace_processes(limits.processes)
    _limit(confinement, is_alone=Mechanism.NAMESPACES in mechanisms)
    drop_capabilities()
    deny_new_privileges()
    be_no_dump()
    if confinement.takes_many_jobs:
        adopt_orphans()
    if Mechanism.LANDLOCK in mechanisms:
        restrict_files(confinement.readable, (work_folder, *confinement.writable))
    if Mechanism.SECCOMP in mechanisms:
        program = seccomp.filter_program(
            os.getpid(), may_start_programs=confinement.may_start_programs
        )
        install_filter(program)


def limit_processor_time(seconds: int, *, for_ever: bool) -> None:
    """Limits the processor time of this process, and of each that it starts, from now on.

    If not `for_ever`, a later call may raise the limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit_s = math.ceil(time.process_time()) + seconds
    most = limit_s if hard == resource.RLIM_INFINITY else min(limit_s, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most if for_ever else hard))


def _limit(confinement: Confinement, *, is_alone: bool) -> None:
    limits = confinement.limits
    reserved_s = MAX_REUSED_PROCESSOR_S if confinement.takes_many_jobs else 0
    bounds = {
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_AS: limits.memory_bytes + _RESERVED_BYTES,
        resource.RLIMIT_CPU: limits.processor_s + reserved_s,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if is_alone:  # otherwise the limit would count all processes of this user
        bounds[resource.RLIMIT_NPROC] = limits.processes
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)
        most = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (most, most))


def _works(trial: Callable[[], None]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            trial()
        except BaseException:  # any error means that the mechanism does not work here
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _try_namespaces() -> None:
    enter_shared_namespaces()
    enter_process_namespace()
    if not _works(lambda: _demand(os.getpid() == 1)):
        raise OSError


def _try_landlock() -> None:
    _demand(landlock_version() > 0)
    deny_new_privileges()
    restrict_files((Path("/usr"),), ())
    try:
        os.close(os.open("/proc/self/status", os.O_RDONLY))
    except PermissionError:
        return
    raise OSError


def _try_seccomp() -> None:
    _demand(seccomp.is_supported())
    deny_new_privileges()
    install_filter(seccomp.filter_program(os.getpid(), may_start_programs=False))
    try:
        os.setsid()
    except PermissionError:
        return
    raise OSError


def _demand(is_so: bool) -> None:
    if not is_so:
        raise OSError


def existing(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths that exist, resolved, without repetition."""
    return tuple(dict.fromkeys(path.resolve() for path in paths if path.exists()))
