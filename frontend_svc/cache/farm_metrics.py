"""The metrics of the whole farm, which a frontend reads from the cache when it is scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kernelfarm.cache.farm_counters import FarmCounters, FarmCounts
from kernelfarm.cache.records import Space
from kernelfarm.errors import UnavailableError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics import declarations
from kernelfarm.service.metrics.declarations import Family
from kernelfarm.service.metrics.endpoint import added_collector
from kernelfarm.service.tenants.authentication import TenantsFile
from kernelfarm.service.tenants.identity import SHARED_TENANT

CACHE_TIMEOUT_S = 1.0
"""A scrape waits so long for each step with the cache; Prometheus itself waits 10 s."""

_SPACES = {space.value: space.name.lower() for space in Space}
_TIERS = {"hits": "store", "gateway_hits": "gateway", "shared_hits": "shared"}
_MISSES = ("guard", "epoch", "incarnation", "toolchain", "expired")
_MISS_SUFFIX = "_misses"
_REFUSED_PREFIX = "refused_"
_PROCESSOR_MS = "processor_ms"
_INVALIDATIONS = ("invalidations", "")
EVENTS = (
    *("merged", "jobs", "dropped", "claims", "takeovers", "slow_kernels", "quarantined"),
    *("failures", "failures_dropped", "missing_blobs", "stale_serves"),
    *("published", "fenced", "stale_epochs", "stale_incarnations", "nondeterministic"),
    *("forged", "untrusted", "mismatched", "expired_manifests", "poisoned", "malformed"),
    *("imported", "tenants_file_errors"),
)
"""Exported from the start, because Prometheus sees no increase in a counter that appears at 1."""
_MAX_NAMES = 256
"""Names come from this farm's own services; the bound holds if others write to the cache."""

_Series = tuple[Family, tuple[str, ...]]

TenantQuotas = Callable[[], Mapping[str, int | None]]
"""Gives the quota in bytes of each tenant, None for tenants without one."""


@contextmanager
def exported_farm_metrics(cache_url: str, farm: str, tenants: TenantsFile | None) -> Iterator[None]:
    """Adds the farm's metrics to those of this process while the block runs."""
    counters = FarmCounters(cache_url, farm, CACHE_TIMEOUT_S)
    with counters, added_collector(FarmMetrics(counters, partial(_quotas, tenants))):
        yield


def _quotas(tenants: TenantsFile | None) -> dict[str, int | None]:
    if tenants is None:
        return {}
    directory = tenants.latest
    quotas = {name: tenant.quota.max_bytes for name, tenant in directory.tenants.items()}
    return {**quotas, SHARED_TENANT: directory.shared.quota.max_bytes}


class FarmMetrics(Collector):
    """Exports the counters of all namespaces, and the bytes of each tenant of the tenants file."""

    def __init__(self, counters: FarmCounters, quotas: TenantQuotas) -> None:
        self._counters = counters
        self._quotas = quotas
        self._source: tuple[str, frozenset[str]] | None = None
        self._highest: dict[_Series, float] = {}

    def collect(self) -> Iterable[Metric]:
        """The farm's metrics now, or only the statement that the cache did not answer."""
        quotas = self._quotas()
        try:
            counts = self._counters.read(sorted(quotas))
        except UnavailableError as error:
            get_logger().warning("farm_counters_failed", message=str(error))
            return [declarations.FARM_COUNTERS_UP.of(0)]
        return [
            declarations.FARM_COUNTERS_UP.of(1),
            *self._counter_metrics(counts, frozenset(quotas)),
            *_byte_metrics(counts, quotas),
        ]

    def _counter_metrics(self, counts: FarmCounts, tenants: frozenset[str]) -> Iterator[Metric]:
        """The counters; none is lower than before, unless the cache or the tenants changed.

        A counter of hits is corrected downwards if a variant's guard does not hold. Prometheus
        would take any decrease for a restart from 0, and count all hits again.
        """
        if self._source != (source := (counts.incarnation, tenants)):
            self._source = source
            self._highest = {}
        for series, value in _series(counts.counters):
            self._highest[series] = max(value, self._highest.get(series, 0.0))
        metrics = {family.name: family.metric() for family, _ in self._highest}
        for (family, labels), value in self._highest.items():
            metrics[family.name].add_metric(labels, value)
        yield from metrics.values()


def _series(counters: Mapping[tuple[str, str], int]) -> Iterator[tuple[_Series, float]]:
    """The series of the counters, with their values."""
    yield (declarations.FARM_EVENTS, ("", "invalidations")), counters.get(_INVALIDATIONS, 0)
    for code, space in _SPACES.items():
        own = {name: count for (of, name), count in counters.items() if of == code}
        own = {name: max(0, own[name]) for name in sorted(own)[:_MAX_NAMES]}
        own = dict.fromkeys([*EVENTS, *(f"{reason}_misses" for reason in _MISSES)], 0) | own
        reasons = {name: own.pop(name) for name in list(own) if name.endswith(_MISS_SUFFIX)}
        absent = own.pop("misses", 0) - sum(reasons.values())
        yield (declarations.FARM_MISSES, (space, declarations.NO_ENTRY)), max(0, absent)
        for name, count in reasons.items():
            reason = name.removesuffix(_MISS_SUFFIX)
            yield (declarations.FARM_MISSES, (space, reason)), count
        for name, tier in _TIERS.items():
            yield (declarations.FARM_HITS, (space, tier)), own.pop(name, 0)
        yield from _other_series(space, own)


def _other_series(space: str, own: dict[str, int]) -> Iterator[tuple[_Series, float]]:
    if Space.KERNELS.name.lower() == space:
        yield (declarations.FARM_PROCESSOR_SECONDS, ()), own.pop(_PROCESSOR_MS, 0) / 1e3
    for name, count in own.items():
        if name.startswith(_REFUSED_PREFIX):
            reason = name.removeprefix(_REFUSED_PREFIX)
            yield (declarations.FARM_REFUSED, (reason,)), count
        else:
            yield (declarations.FARM_EVENTS, (space, name)), count


def _byte_metrics(counts: FarmCounts, quotas: Mapping[str, int | None]) -> Iterator[Metric]:
    held, limits = declarations.TENANT_BYTES.metric(), declarations.TENANT_LIMIT_BYTES.metric()
    for tenant, limit_bytes in quotas.items():
        held.add_metric([tenant], counts.held_bytes.get(tenant, 0))
        if limit_bytes is not None:
            limits.add_metric([tenant], limit_bytes)
    yield declarations.FARM_BYTES.of(sum(counts.held_bytes.values()))
    yield held
    yield limits
