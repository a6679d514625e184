"""Runs a service's process: settings, logs, exit status."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Awaitable, Callable

from kernelfarm import spans
from kernelfarm.errors import CallerError, KernelfarmError
from kernelfarm.service.logs.logger import configure_logs, get_logger
from kernelfarm.service.metrics.endpoint import metrics_endpoint
from kernelfarm.service.settings import SettingsT, load_settings

_OPEN_FILES = 65_536

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread keeps the interpreter once the event loop wants it; CPython's default is 5 ms.

A hit goes through the event loop some three times. While a thread puts a program together, each of
them would wait 5 ms.
"""


def run_service(
    name: str, kind: type[SettingsT], main: Callable[[SettingsT], Awaitable[None]]
) -> int:
    """Runs a service's `main` with its settings and returns the exit status.

    The status is 0 after an orderly stop, 2 if the settings or the files that they name cannot be
    used, and 1 for failures that are not the operator's fault. The reason is the last line on
    stderr.
    """
    try:
        settings = load_settings(kind)
    except CallerError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 2
    configure_logs(settings, name)
    _allow_many_connections()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        spans.start_export(name)
        with metrics_endpoint(settings):
            asyncio.run(_awaited(main, settings))
    except CallerError as error:  # before the first call: it concerns the settings
        get_logger().error("service_misconfigured", reason=error.reason, message=str(error))
        return 2
    except KernelfarmError as error:
        get_logger().error("service_failed", reason=error.reason, message=str(error))
        return 1
    finally:
        spans.end_export()
    return 0


def _allow_many_connections() -> None:
    """Raises the soft limit of open files, which is often 1,024: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def _awaited(main: Callable[[SettingsT], Awaitable[None]], settings: SettingsT) -> None:
    await main(settings)
