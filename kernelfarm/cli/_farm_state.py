"""What `kernelfarm top` shows: a farm's counters, the metrics of its processes, recent failures."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelfarm.bounded_text import bounded
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.errors import CallerError
from kernelfarm.service.settings import ServiceSettings, load_settings
from kernelfarm.v1 import compile_service_pb2

_PAGE_BYTES = 16 << 20
_PAGE_S = 2.0
_LOG_TAIL_BYTES = 64 << 10
_FAILURES = 8
_FAILURE_BYTES = 160
_SERIOUS = frozenset({"warning", "error", "critical"})

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FarmProcess:
    """A process of a local farm, as `farm.json` states it."""

    name: str
    is_ready: bool
    restarts: int
    metrics: str
    log: Path


@dataclass(frozen=True, slots=True)
class Failure:
    """A serious line of a log."""

    time: str
    process: str
    text: str


@dataclass(slots=True)
class FarmState:
    """A farm at one time; `samples` are the sums over all pages that could be read."""

    at_s: float
    capabilities: compile_service_pb2.GetCapabilitiesResponse
    counters: Mapping[str, Mapping[str, int]]
    processes: Sequence[FarmProcess] = ()
    samples: Counter[tuple[str, Labels]] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values of a series, added up by these labels."""
        found: dict[tuple[str, ...], float] = {}
        for (of, has), value in self.samples.items():
            if of == name:
                stated = dict(has)
                key = tuple(stated.get(label, "") for label in labels)
                found[key] = found.get(key, 0.0) + value
        return found


def read_state(
    farm: FarmClient, cache: CacheAdmin, data_dir: Path | None, addresses: Sequence[str]
) -> FarmState:
    """The farm now; a page or log that cannot be read is named in the state.

    Raises:
        KernelfarmError: the farm does not answer, or refuses the caller.
    """
    spaces = cache.usage("").spaces
    names = ("programs", "kernels", "traces")
    counters = {n: dict(space.counters) for n, space in zip(names, spaces, strict=True)}
    processes = [] if data_dir is None else list(_processes(data_dir))
    state = FarmState(time.monotonic(), farm.capabilities(), counters, processes)
    tls = _tls()
    for address in [*addresses, *(p.metrics for p in processes if p.metrics)]:
        try:
            state.samples.update(_samples(address, tls))
        except (OSError, ValueError) as error:
            state.unreadable.append(f"{address}: {bounded(str(error), _FAILURE_BYTES)}")
    failures = [failure for process in processes for failure in _failures(process)]
    state.failures = sorted(failures, key=lambda failure: failure.time)[-_FAILURES:]
    return state


def local_farm(data_dir: Path, *, is_stated: bool) -> Path | None:
    """The folder if a farm has its status file there; None if not, unless it was stated.

    Raises:
        CallerError: the user stated a folder without a farm.
    """
    if (data_dir / "farm.json").is_file():
        return data_dir
    if is_stated:
        raise CallerError(f"{data_dir} has no farm.json; expected the --data-dir of a farm")
    return None


def _processes(data_dir: Path) -> Iterator[FarmProcess]:
    with suppress(OSError, ValueError, KeyError):  # it is being replaced, or older
        status = json.loads((data_dir / "farm.json").read_text(encoding="utf-8"))
        for name, child in status["children"].items():
            metrics = child.get("metrics", "")
            yield FarmProcess(name, child["ready"], child["restarts"], metrics, Path(child["log"]))


def _tls() -> ssl.SSLContext | None:
    """Trusts the farm's own CA; addresses on loopback are not what its certificates name."""
    ca_file = load_settings(ServiceSettings).internal_ca_file
    if ca_file is None:
        return None
    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = False
    return context


def _samples(address: str, tls: ssl.SSLContext | None) -> Counter[tuple[str, Labels]]:
    from prometheus_client.parser import (  # noqa: PLC0415 -- not needed by a client
        text_string_to_metric_families,
    )

    url = f"{'http' if tls is None else 'https'}://{address}/metrics"
    with urllib.request.urlopen(url, timeout=_PAGE_S, context=tls) as page:
        text = page.read(_PAGE_BYTES).decode()
    found: Counter[tuple[str, Labels]] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # Each frontend exports the farm's counters, which are read by `GetUsage`.
            if sample.name.startswith("kernelfarm_") and "_farm_" not in sample.name:
                found[sample.name, tuple(sorted(sample.labels.items()))] += sample.value  # type: ignore[assignment] # fractions
    return found


def _failures(process: FarmProcess) -> Iterator[Failure]:
    """The serious lines at the end of a log; its texts may quote clients."""
    with suppress(OSError), process.log.open("rb") as file:
        file.seek(max(0, process.log.stat().st_size - _LOG_TAIL_BYTES))
        for line in file.read().splitlines()[-2000:]:
            if b'"level": "info"' not in line and (failure := _failure(process.name, line)):
                yield failure


def _failure(process: str, line: bytes) -> Failure | None:
    try:
        event: Any = json.loads(line)
    except ValueError:  # the first line of the tail is cut; servers write text
        return None
    if not isinstance(event, dict) or event.get("level") not in _SERIOUS:
        return None
    words = [event.get(name) for name in ("event", "reason", "message")]
    text = " ".join(str(word) for word in words if word)
    return Failure(
        bounded(str(event.get("timestamp", "")), 40), process, bounded(text, _FAILURE_BYTES)
    )
