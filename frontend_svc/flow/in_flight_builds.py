"""The programs that this frontend compiles now, each in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kernelfarm.end_task import end_task
from kernelfarm.errors import FarmFullError, KernelfarmError
from kernelfarm.service.logs.logger import get_logger


class InFlightBuilds:
    """Runs builds in tasks that outlive their clients: other requests may wait for a build."""

    def __init__(self, max_builds: int) -> None:
        self._max_builds = max_builds
        self._tasks: set[asyncio.Task[int]] = set()
        self._warm_ups: set[asyncio.Task[int]] = set()

    def check_capacity(self, *, is_warm_up: bool) -> None:
        """Checks that one more build may start; warm-ups leave half of the builds to users.

        Raises:
            FarmFullError: this frontend compiles as many programs as it may.
        """
        if len(self._tasks) >= self._max_builds:
            raise FarmFullError(
                f"{len(self._tasks)} programs are being compiled, the limit of this frontend"
            )
        if is_warm_up and len(self._warm_ups) >= max(1, self._max_builds // 2):
            raise FarmFullError(
                f"{len(self._warm_ups)} programs are being warmed up, the limit of this frontend"
            )

    async def run(self, build: Coroutine[Any, Any, int], *, is_warm_up: bool) -> int:
        """The result of a build; if the caller is cancelled, the build goes on."""
        task = asyncio.create_task(build)
        self._tasks.add(task)
        if is_warm_up:
            self._warm_ups.add(task)
        task.add_done_callback(self._build_done)
        return await asyncio.shield(task)

    def _build_done(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        self._warm_ups.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), KernelfarmError):
            # The client may have left: then only the log reports the error.
            get_logger().warning("program_failed", reason=error.reason, message=str(error))

    async def drain(self, grace_s: float) -> None:
        """Returns when every program in flight is published or has failed.

        Builds that take longer than the grace are cancelled: requests that wait for them continue
        at another frontend.
        """
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=grace_s)
        if late:
            get_logger().warning("compiles_aborted", programs=len(late), grace_s=grace_s)
        await asyncio.gather(*(end_task(task) for task in late))
