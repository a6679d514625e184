"""For how long a failure is returned again without another attempt."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.errors import CallerError, WorkMemoryError, WorkTimeError


@dataclass(frozen=True, slots=True)
class FailureTtls:
    """Seconds by kind of failure: permanent, out of time or memory, and temporary."""

    rejection_s: float
    exhausted_s: float
    outage_s: float

    def ttl_s(self, error: Exception) -> float:
        """How long an error is cached.

        A spent budget of steps is permanent, for steps are counted. Time and memory depend on the
        machine.
        """
        if isinstance(error, CallerError):
            return self.rejection_s
        if isinstance(error, WorkTimeError | WorkMemoryError):
            return self.exhausted_s
        return self.outage_s
