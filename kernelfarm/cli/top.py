"""`kernelfarm top`: shows a running farm in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.cli._cache import Endpoint, Token
from kernelfarm.errors import UnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kernelfarm.cli._farm_state import FarmState

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm top

  kernelfarm top --endpoint farm.example:50051 --metrics frontend:9464 --metrics worker:9464

  kernelfarm top --once
"""

_DATA_DIR = Path("~/.local/state/kernelfarm")
_HITS = ("gateway_hits", "hits", "shared_hits", "misses", "merged")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(top)


def top(
    endpoint: Endpoint = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="KERNELFARM_DATA_DIR",
            help="The folder of a farm on this machine, for its processes, metrics and logs.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PORT of a process's metrics; once for each process."),
    ] = None,
    every_s: Annotated[float, typer.Option(min=0.5, help="Seconds between two frames.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    token: Token = "",
) -> None:
    """Shows a running farm: its queues, workers, hits, calls and recent failures.

    Queues and calls are shown if the metrics of the farm's processes are readable: start a farm
    with `kernelfarm up --metrics`, or name the addresses.
    """
    try:
        import prometheus_client.parser  # noqa: F401, PLC0415 -- for the message
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"`kernelfarm top` needs {error.name}, which is not installed: pip install"
            " 'kernelfarm[farm]'"
        ) from error
    import time  # noqa: PLC0415 -- keeps --help quick, as all below

    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from kernelfarm.cli._cache import connect  # noqa: PLC0415
    from kernelfarm.cli._farm_state import local_farm, read_state  # noqa: PLC0415
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415

    folder = local_farm((data_dir or _DATA_DIR).expanduser(), is_stated=data_dir is not None)
    settings = client_settings(**({} if endpoint is None else {"endpoint": endpoint}))
    with FarmClient(settings) as farm, connect(endpoint, token) as cache:
        state = read_state(farm, cache, folder, metrics or ())
        if once:
            Console().print(_frame(settings.endpoint, state, None))
            return
        with Live(_frame(settings.endpoint, state, None), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                before, state = state, read_state(farm, cache, folder, metrics or ())
                live.update(_frame(settings.endpoint, state, before), refresh=True)


def _frame(endpoint: str, state: FarmState, before: FarmState | None) -> RenderableType:
    """One picture of the farm; rates are those since the frame before."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    processes = state.processes
    parts = [f"farm {endpoint}", f"version {state.capabilities.farm_version}"]
    if processes:
        ready = sum(process.is_ready for process in processes)
        restarts = sum(process.restarts for process in processes)
        parts.append(f"{ready} of {len(processes)} processes ready, {restarts} restarts")
    notes = [Text(f"no metrics of {line}", style="yellow") for line in state.unreadable]
    if not state.samples:
        notes.append(Text("no metrics: start the farm with --metrics, or name addresses"))
    return Group(
        Text("  ".join(parts), style="bold"),
        _vendors(state),
        _hits(state, before),
        _calls(state, before),
        *notes,
        *_failures(state),
    )


def _vendors(state: FarmState) -> Table:
    table = _table("vendor", "oldest s", "queued", "warm-up", "running", "slots", "targets")
    targets: dict[str, list[str]] = {}
    for entry in state.capabilities.targets:
        vendor, _, chip = entry.target.partition(":")
        targets.setdefault(vendor, []).extend([chip] if entry.toolchain else [])
    oldest = state.by("kernelfarm_queue_oldest_seconds", "vendor", "priority")
    queued = state.by("kernelfarm_queued_jobs", "vendor", "priority")
    running = state.by("kernelfarm_running_jobs", "vendor")
    slots = state.by("kernelfarm_worker_slots", "vendor")
    for vendor, chips in sorted(targets.items()):
        _add(
            table,
            vendor,
            _number(oldest.get((vendor, "interactive")), digits=1),
            _number(queued.get((vendor, "interactive"))),
            _number(queued.get((vendor, "warm_up"))),
            _number(running.get((vendor,))),
            _number(slots.get((vendor,))),
            " ".join(chips) or "no worker with its toolchain",
        )
    return table


def _hits(state: FarmState, before: FarmState | None) -> Table:
    table = _table("cache", *(name.replace("_", " ") for name in _HITS), "takeovers", "quarantined")
    for space, counters in state.counters.items():
        earlier = {} if before is None else before.counters[space]
        elapsed_s = 0.0 if before is None else state.at_s - before.at_s
        cells = []
        for name in _HITS:
            count = counters.get(name, 0)
            rate = (count - earlier.get(name, 0)) / elapsed_s if elapsed_s else 0.0
            cells.append(f"{count} (+{rate:.1f}/s)" if rate > 0 else str(count))
        others = (str(counters.get(name, 0)) for name in ("takeovers", "quarantined"))
        _add(table, space, *cells, *others)
    return table


def _calls(state: FarmState, before: FarmState | None) -> Table:
    """Calls since the frame before, or since the processes started."""
    table = _table("calls", "number", "failed", "half below s", "99% below s")
    counts = _since("kernelfarm_call_seconds_count", ("method", "status"), state, before)
    buckets = _since("kernelfarm_call_seconds_bucket", ("method", "le"), state, before)
    for method in sorted({method for method, _ in counts}):
        of_method = {status: n for (name, status), n in counts.items() if name == method}
        number = sum(of_method.values())
        if number:
            bounds = {float(le): n for (name, le), n in buckets.items() if name == method}
            failed = number - of_method.get("OK", 0.0)
            half, most = (_quantile(bounds, share) for share in (0.5, 0.99))
            _add(table, method, f"{number:.0f}", f"{failed:.0f}", half, most)
    return table


def _since(
    name: str, labels: tuple[str, ...], state: FarmState, before: FarmState | None
) -> dict[tuple[str, ...], float]:
    """The increase of a series; a process that was started again counts from 0."""
    earlier = {} if before is None else before.by(name, *labels)
    now = state.by(name, *labels)
    return {
        key: value - earlier.get(key, 0.0) if value >= earlier.get(key, 0.0) else value
        for key, value in now.items()
    }


def _quantile(bounds: dict[float, float], share: float) -> str:
    """The least bucket bound below which this share of the calls is."""
    total = max(bounds.values(), default=0.0)
    for bound, count in sorted(bounds.items()):
        if total and count >= share * total:
            return "more" if bound == float("inf") else f"{bound:g}"
    return "-"


def _failures(state: FarmState) -> list[RenderableType]:
    if not state.failures:
        return []
    table = _table("recent failures", "process", "what")
    for failure in state.failures:
        _add(table, failure.time, failure.process, failure.text)
    return [table]


def _table(*columns: str) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold cyan")
    for column in columns:
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    return table


def _add(table: Table, *cells: str) -> None:
    """Adds a row; what farms and logs say is no markup."""
    from rich.text import Text  # noqa: PLC0415

    table.add_row(*map(Text, cells))


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
