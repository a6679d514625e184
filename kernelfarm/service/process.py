"""The frame of a service's process: settings, logs, exit status."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Awaitable, Callable

from kernelfarm.errors import CallerError, KernelfarmError
from kernelfarm.service.logs import configure_logs, get_logger
from kernelfarm.service.settings import SettingsT, load_settings

_OPEN_FILES = 65_536

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread keeps the interpreter once the event loop wants it; CPython's default is 5 ms.

A hit goes through the event loop some three times. While a thread puts a program together, each of
them would wait 5 ms.
"""


def run_service(
    room: str, kind: type[SettingsT], main: Callable[[SettingsT], Awaitable[None]]
) -> int:
    """Runs a service's `main` with its settings and gives the exit status.

    0 after an orderly stop, 2 for settings that cannot be used or files that they name, 1 for
    trouble that is not the operator's fault; the reason is the last line on stderr.
    """
    try:
        settings = load_settings(kind)
    except CallerError as error:
        sys.stderr.write(f"{room}: {error}\n")
        return 2
    configure_logs(settings, room)
    _allow_many_connections()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        asyncio.run(_awaited(main, settings))
    except CallerError as error:  # nobody called yet: what the settings name cannot be used
        get_logger().error("service_misconfigured", reason=error.reason, message=str(error))
        return 2
    except KernelfarmError as error:
        get_logger().error("service_failed", reason=error.reason, message=str(error))
        return 1
    return 0


def _allow_many_connections() -> None:
    """Raises the soft limit of open files, which is often 1,024: each caller takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _awaited(main: Callable[[SettingsT], Awaitable[None]], settings: SettingsT) -> None:
    await main(settings)
