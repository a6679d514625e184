"""How a job ended: what is recorded of a failure, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.settings import WorkerSettings
from kernelfarm.errors import (
    CallerError,
    ErrorFacts,
    InternalError,
    UnavailableError,
    error_facts,
)
from kernelfarm.service.logs.logger import get_logger


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended: for the log, and as a label of metrics."""

    text: str
    label: str


def failure_label(error: Exception) -> str:
    """Whose failure it is: the caller's (rejected), the machine's (unavailable), or our own."""
    if isinstance(error, CallerError):
        return "rejected"
    is_shortage = isinstance(error, (UnavailableError, MemoryError, OSError))
    return "unavailable" if is_shortage else "failed"


def recorded_failure(settings: WorkerSettings, error: Exception) -> tuple[ErrorFacts, float]:
    """The facts of a failure to record, and for how long in seconds."""
    if isinstance(error, CallerError):
        get_logger().info("kernel_rejected", message=str(error))
        return error_facts(error), settings.rejection_ttl_s
    if isinstance(error, (MemoryError, OSError)):
        get_logger().warning("job_out_of_resources", exc_info=error)
        error = UnavailableError(f"the worker is short of resources: {error}")
    if isinstance(error, UnavailableError):
        get_logger().warning("job_unavailable", message=str(error))
        return error_facts(error), settings.shortage_ttl_s
    get_logger().error("job_failed", exc_info=error)
    if not isinstance(error, InternalError):
        error = InternalError(f"the backend failed with {type(error).__name__}: {error}")
    return error_facts(error), settings.bug_ttl_s
