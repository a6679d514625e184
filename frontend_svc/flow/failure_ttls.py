"""For how long a failure is told again without trying."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.errors import CallerError, WorkMemoryError, WorkTimeError


@dataclass(frozen=True, slots=True)
class FailureTtls:
    """Seconds by kind: what fails again, what used too much, and what may pass."""

    rejection_s: float
    exhausted_s: float
    outage_s: float

    def ttl_s(self, error: Exception) -> float:
        """How long an error is remembered.

        Steps are counted, so a spent budget fails again; time and memory depend on the machine.
        """
        if isinstance(error, CallerError):
            return self.rejection_s
        if isinstance(error, WorkTimeError | WorkMemoryError):
            return self.exhausted_s
        return self.outage_s
