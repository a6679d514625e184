"""The limits of a pool: what one job may use, and how many run at once."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of one pool.

    `processes` light jobs run at once, and as many heavy jobs beside them. A job is heavy if its
    message has `heavy_bytes`, or once it has used `heavy_after_s` of processor time. A job may use
    `max_processor_s` of processor time and `max_memory_bytes` of address space, and its result has
    at most `max_answer_bytes`. At most `max_waiting` jobs of one tenant may wait.

    A child that uses no processor time for `hung_after_s` during a job is replaced. So is a child
    that holds more than `max_idle_memory_bytes` after its job. A fork server that does not fork
    within `hung_after_s` is restarted.
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
