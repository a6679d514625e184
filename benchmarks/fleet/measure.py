"""Measures the service times on a real farm that compiles the graphs of a real model."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.cache.hits import GET, MEMORY, STORE, Row, subjects, time_once
from benchmarks.fleet.service_times import ProgramTimes, ServiceTimes
from benchmarks.machine import machine
from examples.large_models import LARGE
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.ir.graph_ir import Graph
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.gateways import cpu_seconds, publish, running_store
from tests.support.otlp_endpoint import OtlpEndpoint, ReceivedSpan, otlp_endpoint
from tests.support.traced_graphs import recording

_TIMEOUT_S = 600.0
_EXPORTED_WITHIN_S = 30.0
_CALLERS = 16
_ROUNDS, _ROUND_S = 9, 0.5
_CALLS = 200
_STAGES = ("import", "decompose", "optimize", "publish")


def measured_times(models: Sequence[str], target: str) -> ServiceTimes:
    """The service times of one inference server's models, each traced as `torch.compile` does.

    The farm has one process of each kind, and compiles one kernel at a time.
    """
    measured_on = machine()
    graphs = {
        f"{model} {number}": graph
        for model in models
        for number, graph in enumerate(_graphs(model))
    }
    with (
        tempfile.TemporaryDirectory(prefix="kf-") as folder,
        otlp_endpoint() as endpoint,
        codegen_farm(Path(folder)) as farm,
    ):
        farm.environment.update(endpoint.environment)
        farm.start_edge()
        farm.start_worker(1, queue=target.partition(":")[0])
        for service in ("optimizer", "frontend"):
            farm.start_service(service, service)
        with connect(f"unix:{folder}/frontend", _TIMEOUT_S) as client:
            measured = _Measured(farm, client, endpoint)
            programs = [measured.program(name, graph, target) for name, graph in graphs.items()]
    hits = _hits(round(statistics.mean(program.program_bytes for program in programs)))
    return ServiceTimes(
        machine=measured_on,
        target=target,
        hit_in_memory_s=hits[MEMORY],
        hit_in_redis_s=hits[STORE],
        redis_get_s=hits[GET],
        between_jobs_s=statistics.median(measured.pauses_s),
        jobs_s=measured.jobs_s,
        programs=tuple(programs),
    )


def _graphs(model: str) -> list[Graph]:
    source = LARGE[model]()
    found: list = []
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(source.model, backend=recording(found, runs=False))(*source.args)
    return [captured.graph for captured in found]


class _Measured:
    """Programs as a farm compiled them, one after the other."""

    def __init__(self, farm: CodegenFarm, client: FarmClient, endpoint: OtlpEndpoint) -> None:
        self._farm, self._client, self._endpoint = farm, client, endpoint
        self._seen: set[str] = set()
        self.jobs_s: dict[str, float] = {}
        self.pauses_s: list[float] = []

    def program(self, name: str, graph: Graph, target: str) -> ProgramTimes:
        """The times of a new program; those of its kernel jobs are added to `jobs_s`."""
        (program,) = self._client.compile(graph, [target])
        spans = self._spans_of_build()
        self._add_jobs(spans)
        stages = {f"{s.name}_s": s.ended_s - s.began_s for s in spans if s.name in _STAGES}
        artifacts = [variant for variants in program.kernels for variant in variants]
        binaries = {each.binary.sha256: each.binary.size_bytes for each in artifacts}
        read_s = self._used_s(lambda: self._client.read_blobs(list(binaries)))
        compile_hit_s, _ = self._used_s(lambda: self._client.compile(graph, [target]))
        return ProgramTimes(
            name=name,
            nodes=len(graph.nodes),
            **stages,
            kernels=tuple(dict.fromkeys(program.plan.kernel_names)),
            program_bytes=len(program.content),
            binary_bytes=sum(binaries.values()),
            compile_hit_s=compile_hit_s,
            read_binaries_s=read_s[0],
            read_binaries_redis_s=read_s[1],
        )

    def _spans_of_build(self) -> list[ReceivedSpan]:
        """The spans of the new trace with a build, once all are exported."""
        found: list[ReceivedSpan] = []

        def is_complete() -> bool:
            spans = self._endpoint.spans()
            built = {span.trace_id for span in spans if span.name == "build program"} - self._seen
            found[:] = [span for span in spans if span.trace_id in built]
            names = [span.name for span in found]
            is_ended = any(name.endswith("CompileService/Compile") for name in names)
            return is_ended and names.count("job") == names.count("queue")

        deadline_s = time.monotonic() + _EXPORTED_WITHIN_S
        while not is_complete():
            if time.monotonic() > deadline_s:
                raise RuntimeError("the farm exported no complete trace of a build")
            time.sleep(0.05)
        self._seen.update(span.trace_id for span in found)
        return found

    def _add_jobs(self, spans: Sequence[ReceivedSpan]) -> None:
        jobs = {span.span_id: span for span in spans if span.name == "job"}
        for span in spans:
            if span.name == "compile":
                job = jobs[span.parent_id]
                self.jobs_s[span.attributes["kernel"]] = job.ended_s - job.began_s
        ordered = sorted(jobs.values(), key=lambda job: job.began_s)
        self.pauses_s += [b.began_s - a.ended_s for a, b in itertools.pairwise(ordered)]

    def _used_s(self, call: Callable[[], object]) -> tuple[float, float]:
        """Processor seconds of gateway and Redis for a call that is repeated."""
        processes = (self._farm.services["frontend"], self._farm.cache.process)
        pids = [[process.pid] for process in processes]
        before_s = [cpu_seconds(each) for each in pids]
        for _ in range(_CALLS):
            call()
        gateway_s, redis_s = (
            (cpu_seconds(each) - earlier_s) / _CALLS
            for each, earlier_s in zip(pids, before_s, strict=True)
        )
        return gateway_s, redis_s


def _hits(content_bytes: int) -> dict[str, float]:
    """Processor seconds of one call by subject; the median of some rounds."""
    with running_store() as bench:
        (key,) = asyncio.run(publish(bench, 1, content_bytes))
        with subjects(bench, key) as called:
            rows = {subject.name: Row(subject.name, _CALLERS) for subject in called}
            for _ in range(_ROUNDS):
                for subject in called:
                    time_once(rows[subject.name], subject, _ROUND_S)
    return {name: statistics.median(row.server_cpu_us) / 1e6 for name, row in rows.items()}
