"""Several gateways as processes on one port: starts them, restarts those that die, drains them all.

Each connection reaches one gateway. Gateways are new processes, never forked from a process that
has used gRPC. They share only the port: each has a memory tier and an invalidation feed of its own.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frontend_svc.cache.farm_metrics import exported_farm_metrics
from frontend_svc.settings import FrontendSettings
from kernelfarm.end_task import end_task
from kernelfarm.processes.child import Child, ChildSpec
from kernelfarm.processes.hang_rules import DEFAULT_WATCH
from kernelfarm.processes.ports import bound_address
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.processes import shared_metrics
from kernelfarm.service.probes import ServiceProbe
from kernelfarm.service.tenants.authentication import TenantsFile

# Longer than the gateways' own grace, so that SIGKILL ends only gateways that hang.
_DRAIN_MARGIN_S = 10.0


async def serve_gateways(settings: FrontendSettings) -> None:
    """Serves until SIGTERM or SIGINT, then drains all gateways at once.

    Raises:
        UnavailableError: the port is taken, or a gateway does not start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    address = bound_address(settings.frontend_listen)
    with tempfile.TemporaryDirectory(prefix="kernelfarm-") as folder, _metrics(settings):
        gateways = [
            Child(_spec(settings, address, Path(folder), number), None, _report)
            for number in range(settings.frontend_processes)
        ]
        try:
            await _started(gateways, stop)
            keepers = [asyncio.create_task(gateway.keep_alive()) for gateway in gateways]
            get_logger().info("gateways_serving", address=address, processes=len(gateways))
            await stop.wait()
        finally:
            await asyncio.gather(*(gateway.stop() for gateway in gateways))
        await asyncio.gather(*keepers)


@contextmanager
def _metrics(settings: FrontendSettings) -> Iterator[None]:
    """Serves the sums of the gateways' metrics, and the farm's metrics, if metrics are served."""
    if not settings.metrics_listen:
        yield
        return
    path = settings.tenants_file
    tenants = None if path is None else TenantsFile(path)
    with (
        shared_metrics(),
        exported_farm_metrics(settings.cache_url, settings.namespace, tenants),
    ):
        yield


async def _started(gateways: list[Child], stop: asyncio.Event) -> None:
    """Returns when all gateways serve, or when `stop` is set."""
    for gateway in gateways:
        await gateway.start()
    serving = asyncio.ensure_future(asyncio.gather(*(g.wait_ready() for g in gateways)))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await end_task(stopping)


def _spec(settings: FrontendSettings, address: str, folder: Path, number: int) -> ChildSpec:
    own = f"unix:{folder}/{number}"
    return ChildSpec(
        name=f"gateway-{number}",
        argv=(sys.executable, "-m", "frontend_svc"),
        environment=(
            ("KERNELFARM_FRONTEND_PROCESSES", "1"),
            ("KERNELFARM_FRONTEND_LISTEN", address),
            ("KERNELFARM_FRONTEND_PROCESS_LISTEN", own),
            ("KERNELFARM_METRICS_LISTEN", ""),
            ("KERNELFARM_PAGE_LISTEN", settings.page_listen if number == 0 else ""),
        ),
        probe=ServiceProbe(own, DEFAULT_WATCH.probe_s),
        drain_s=2 * settings.drain_grace_s + _DRAIN_MARGIN_S,
    )


def _report(line: str) -> None:
    get_logger().warning("gateway_changed", message=line)
