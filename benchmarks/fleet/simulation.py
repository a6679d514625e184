"""The simulation: servers request all programs of one model from gateways, at the same time.

    server      for each program: Compile at a gateway chosen at random, then ReadBlobs
    gateway     one event loop, which serves one call at a time, and child processes for graphs
    optimizer   child processes, as many for each gateway
    worker      compiles one kernel at a time; one queue for all
    Redis       serves one command at a time

Single flight: of equal requests, one works and the others wait for it. This holds for the import in
a gateway, and for programs and kernels in the whole farm. Without it, each request that finds no
result works itself, and a job compiles its kernel even if another job has just published it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from benchmarks.fleet.service_times import ProgramTimes, ServiceTimes

Steps = Generator[simpy.Event, Any, None]

CHILD_PROCESSES = 2
"""Of each gateway and each optimizer; the default of their settings."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated; the servers start within `starts_within_s`, evenly at random."""

    servers: int = 1000
    gateways: int = 4
    workers: int = 16
    single_flight: bool = True
    warmed: bool = False
    starts_within_s: float = 2.0
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """Seconds after its own start at which each server is warm, and after time 0; job counts.

    `first_requests_s` are the times of each server's first request. `jobs` counts compilations by
    kernel, `builds` by program.
    """

    warm_after_s: list[float] = field(default_factory=list)
    warm_at_s: list[float] = field(default_factory=list)
    first_requests_s: list[float] = field(default_factory=list)
    jobs: Counter[str] = field(default_factory=Counter)
    builds: Counter[str] = field(default_factory=Counter)
    worker_s: float = 0.0

    def warm_by_s(self, part: float) -> float:
        """The time at which this part of the servers is warm."""
        ordered = sorted(self.warm_at_s)
        return ordered[min(len(ordered), max(1, round(part * len(ordered)))) - 1]


def simulate(times: ServiceTimes, fleet: Fleet) -> Outcome:
    """The outcome of one fleet; equal arguments give equal outcomes."""
    return _Farm(times, fleet).run()


class _Gateway:
    """A frontend process, the child processes of it and of its optimizer, and its memory."""

    def __init__(self, clock: simpy.Environment) -> None:
        self.loop = simpy.Resource(clock)
        self.graphs = simpy.Resource(clock, CHILD_PROCESSES)
        self.optimizer = simpy.Resource(clock, CHILD_PROCESSES)
        self.imported: set[str] = set()
        self.imports: dict[str, simpy.Event] = {}
        self.memory: set[str] = set()


class _Farm:
    """The state of one simulation."""

    def __init__(self, times: ServiceTimes, fleet: Fleet) -> None:
        self._times, self._fleet = times, fleet
        self._clock = clock = simpy.Environment()
        self._random = random.Random(fleet.seed)
        self._redis = simpy.Resource(clock)
        self._workers = simpy.Resource(clock, fleet.workers)
        self._gateways = [_Gateway(clock) for _ in range(fleet.gateways)]
        self._programs: set[str] = set()
        self._kernels: set[str] = set()
        self._builds: dict[str, simpy.Event] = {}
        self._jobs: dict[str, simpy.Event] = {}
        self._outcome = Outcome()
        if fleet.warmed:
            self._programs.update(program.name for program in times.programs)
            self._kernels.update(times.jobs_s)

    def run(self) -> Outcome:
        """Runs until every server is warm."""
        for _ in range(self._fleet.servers):
            start_s = self._random.uniform(0.0, self._fleet.starts_within_s)
            self._clock.process(self._server(start_s))
        self._clock.run()
        return self._outcome

    def _server(self, start_s: float) -> Steps:
        yield self._clock.timeout(start_s)
        for number, program in enumerate(self._times.programs):
            gateway = self._random.choice(self._gateways)
            began_s = self._clock.now
            yield from self._request(gateway, program)
            if number == 0:
                self._outcome.first_requests_s.append(self._clock.now - began_s)
            yield from self._used(self._redis, program.read_binaries_redis_s)
            yield from self._used(gateway.loop, program.read_binaries_s)
        self._outcome.warm_after_s.append(self._clock.now - start_s)
        self._outcome.warm_at_s.append(self._clock.now)

    def _request(self, gateway: _Gateway, program: ProgramTimes) -> Steps:
        """A request and its answer."""
        if not self._fleet.warmed:  # else the trace names the key: a look-up instead of a graph
            yield from self._used(gateway.loop, program.compile_hit_s)
            yield from self._import(gateway, program)
        while True:
            yield from self._look_up(gateway, program.name)
            if program.name in gateway.memory:
                return
            work = lambda: self._build(gateway, program)  # noqa: E731 (used in this iteration)
            yield from self._once(self._builds, program.name, work)

    def _import(self, gateway: _Gateway, program: ProgramTimes) -> Steps:
        def work() -> Steps:
            yield from self._used(gateway.graphs, program.import_s)
            gateway.imported.add(program.name)

        if program.name not in gateway.imported:
            yield from self._once(gateway.imports, program.name, work)

    def _look_up(self, gateway: _Gateway, name: str) -> Steps:
        if name in gateway.memory:
            yield from self._used(gateway.loop, self._times.hit_in_memory_s)
            return
        yield from self._used(gateway.loop, self._times.hit_in_redis_s)
        yield from self._used(self._redis, self._times.redis_get_s)
        if name in self._programs:
            gateway.memory.add(name)

    def _build(self, gateway: _Gateway, program: ProgramTimes) -> Steps:
        self._outcome.builds[program.name] += 1
        yield from self._used(gateway.graphs, program.decompose_s)
        yield from self._used(gateway.optimizer, program.optimize_s)
        kernels = [self._clock.process(self._kernel(name)) for name in program.kernels]
        yield self._clock.all_of(kernels)
        yield from self._used(gateway.loop, program.publish_s)
        self._programs.add(program.name)

    def _kernel(self, name: str) -> Steps:
        yield from self._used(self._redis, self._times.redis_get_s)
        if name not in self._kernels:
            yield from self._once(self._jobs, name, lambda: self._job(name))

    def _job(self, name: str) -> Steps:
        seconds = self._times.jobs_s[name] + self._times.between_jobs_s
        yield from self._used(self._workers, seconds)
        self._outcome.jobs[name] += 1
        self._outcome.worker_s += seconds
        self._kernels.add(name)

    def _once(
        self, in_flight: dict[str, simpy.Event], name: str, work: Callable[[], Steps]
    ) -> Steps:
        """Does the work, or, with single flight, waits for who does it."""
        if not self._fleet.single_flight:
            yield from work()
        elif name in in_flight:
            yield in_flight[name]
        else:
            done = in_flight[name] = self._clock.event()
            yield from work()
            del in_flight[name]
            done.succeed()

    def _used(self, resource: simpy.Resource, seconds: float) -> Steps:
        """Waits for the resource, then uses it."""
        with resource.request() as turn:
            yield turn
            yield self._clock.timeout(seconds)
