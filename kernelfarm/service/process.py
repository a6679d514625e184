"""The frame of a service's process: settings, logs, exit status."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from kernelfarm.errors import CallerError, KernelfarmError
from kernelfarm.service.logs import configure_logs, get_logger
from kernelfarm.service.settings import SettingsT, load_settings


def run_service(
    room: str, kind: type[SettingsT], main: Callable[[SettingsT], Awaitable[None]]
) -> int:
    """Runs a service's `main` with its settings and gives the exit status.

    0 after an orderly stop, 2 for settings that cannot be used, 1 for trouble that is not the
    operator's fault; the reason is the last line on stderr.
    """
    try:
        settings = load_settings(kind)
    except CallerError as error:
        sys.stderr.write(f"{room}: {error}\n")
        return 2
    configure_logs(settings, room)
    try:
        asyncio.run(_awaited(main, settings))
    except KernelfarmError as error:
        get_logger().error("service_failed", reason=error.reason, message=str(error))
        return 1
    return 0


async def _awaited(main: Callable[[SettingsT], Awaitable[None]], settings: SettingsT) -> None:
    await main(settings)
