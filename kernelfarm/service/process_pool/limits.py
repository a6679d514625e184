"""What one job may use, and how many run."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of one pool.

    `processes` jobs run at once that are light so far, and as many heavy ones beside them: a job is
    heavy if its message has `heavy_bytes`, or once it has used `heavy_after_s` of processor time. A
    job may use `max_processor_s` of processor time and `max_memory_bytes` of address space; an
    answer has at most `max_answer_bytes`. A tenant may have `max_waiting` jobs that wait.

    A child that uses no processor time for `hung_after_s` while it works is replaced, and so is one
    that still holds `max_idle_memory_bytes` after its job; a fork server that does not fork for
    `hung_after_s` is started again.
    """

    processes: int = 2
    heavy_after_s: float = 0.25
    heavy_bytes: int = MIB // 2
    max_processor_s: float = 60.0
    max_memory_bytes: int = 4096 * MIB
    max_answer_bytes: int = 512 * MIB
    max_waiting: int = 1024
    hung_after_s: float = 10.0
    max_idle_memory_bytes: int = 1024 * MIB
