"""Every metric of the project.

Names begin with `kernelfarm_`; units are seconds and bytes. Label values come from closed sets:
methods, gRPC statuses, vendors, stages, tenants of the tenants file. None is a key or a request id.

Each service counts some of these metrics. `kernelfarm_farm_...` are counts of the whole farm, which
each frontend reads from the cache: take one of them, for example by `max`, never their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

# The time at which each series began; nothing reads it.
disable_created_metrics()  # type: ignore[no-untyped-call] # the library's

REGISTRY = CollectorRegistry()
"""The metrics of this process that code counts itself."""

CALL_BOUNDS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
"""From a hit in memory, below 1 ms, to the longest compilations."""

_COMPILE_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

CALL_SECONDS = Histogram(
    "kernelfarm_call_seconds",
    "Duration of gRPC calls, by method and gRPC status; health checks are not counted",
    ["method", "status"],
    buckets=CALL_BOUNDS_S,
    registry=REGISTRY,
)
STAGE_SECONDS = Histogram(
    "kernelfarm_stage_seconds",
    "Duration of the stages of a program's compilation, as the frontend sees them. The vendor is"
    " empty for stages that all targets of a request share",
    ["stage", "vendor"],
    buckets=CALL_BOUNDS_S,
    registry=REGISTRY,
)
QUEUE_WAIT_SECONDS = Histogram(
    "kernelfarm_queue_wait_seconds",
    "How long kernel jobs waited until a worker began them",
    ["vendor", "priority"],
    buckets=CALL_BOUNDS_S,
    registry=REGISTRY,
)
KERNEL_COMPILE_SECONDS = Histogram(
    "kernelfarm_kernel_compile_seconds",
    "Duration of kernel jobs at a worker, from the job's begin to its publication, by outcome",
    ["vendor", "outcome"],
    buckets=_COMPILE_BOUNDS_S,
    registry=REGISTRY,
)
COMPILE_SAVED_SECONDS = Counter(
    "kernelfarm_compile_saved_seconds",
    "Compile time of the kernels of programs that were found instead of compiled, by the tier that"
    " had the program",
    ["tier"],
    registry=REGISTRY,
)
INBOUND_BYTES = Gauge(
    "kernelfarm_inbound_bytes",
    "Bytes of requests in memory (held), and how many the process accepts (limit)",
    ["kind"],
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
BUILD_INFO = Gauge(
    "kernelfarm_build_info",
    "Always 1: the version and the toolchain of a service or worker",
    ["service", "version", "toolchain"],
    multiprocess_mode="max",
    registry=REGISTRY,
)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric whose values are read when it is scraped."""

    name: str
    description: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"

    def metric(self) -> CounterMetricFamily | GaugeMetricFamily:
        """A new metric without values."""
        if self.kind == "counter":
            return CounterMetricFamily(self.name, self.description, labels=self.labels)
        return GaugeMetricFamily(self.name, self.description, labels=self.labels)

    def of(self, value: float) -> Metric:
        """The metric of a family without labels."""
        metric = self.metric()
        metric.add_metric([], value)
        return metric


CHILD_PROCESSES = Family(
    "kernelfarm_child_processes", "Processes that descend from this one, such as compilations"
)
CHILD_BYTES = Family(
    "kernelfarm_child_resident_bytes",
    "Resident memory of the processes that descend from this one; memory that they share counts"
    " once for each",
)
QUEUED_JOBS = Family(
    "kernelfarm_queued_jobs",
    "Kernel jobs of one edge that no worker has begun: waiting for a permit, or sent to the broker",
    ("vendor", "priority", "state"),
)
OLDEST_JOB_SECONDS = Family(
    "kernelfarm_queue_oldest_seconds",
    "Age of the oldest kernel job of one edge that no worker has begun; 0 if there is none",
    ("vendor", "priority"),
)
RUNNING_JOBS = Family("kernelfarm_running_jobs", "Kernel jobs that a worker runs", ("vendor",))
WORKER_SLOTS = Family(
    "kernelfarm_worker_slots",
    "Processes of a worker that are ready to run jobs or run one",
    ("vendor",),
)
FARM_COUNTERS_UP = Family(
    "kernelfarm_farm_counters_up",
    "1 if the cache returned the farm's counters to this scrape; 0 if it did not answer, and the"
    " metrics kernelfarm_farm_... and kernelfarm_tenant_... are missing",
)
FARM_HITS = Family(
    "kernelfarm_farm_hits",
    "Look-ups that found a result, by tier: a gateway's memory, the store, or the shared namespace",
    ("space", "tier"),
    "counter",
)
FARM_MISSES = Family(
    "kernelfarm_farm_misses",
    "Look-ups that found nothing, by reason; cold means that no usable entry existed",
    ("space", "reason"),
    "counter",
)
NO_ENTRY = "cold"
"""The reason of misses for which no usable entry existed."""
FARM_EVENTS = Family(
    "kernelfarm_farm_events",
    "The other counters of docs/counters_and_logs.md, by name",
    ("space", "event"),
    "counter",
)
FARM_REFUSED = Family(
    "kernelfarm_farm_refused_calls",
    "Calls that access control, roles or quotas refused, by reason",
    ("reason",),
    "counter",
)
FARM_PROCESSOR_SECONDS = Family(
    "kernelfarm_farm_compile_processor_seconds",
    "Processor time of compilations",
    (),
    "counter",
)
FARM_BYTES = Family("kernelfarm_farm_bytes", "Bytes of entries and blobs in all namespaces")
TENANT_BYTES = Family(
    "kernelfarm_tenant_bytes", "Bytes of a tenant's entries and blobs", ("tenant",)
)
TENANT_LIMIT_BYTES = Family(
    "kernelfarm_tenant_limit_bytes",
    "The quota of a tenant's bytes; absent for tenants without one",
    ("tenant",),
)
