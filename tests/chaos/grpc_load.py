"""Plain gRPC callers: `python -m tests.chaos.grpc_load ENDPOINT SEED`, until stdin ends.

They send hits by key and by graph, graphs to be refused, new programs with fixed and with dynamic
shapes, and a watch that reconnects. Every program must have the key that its caller computes. Each
line on stdin requests slow programs in addition: they keep the CPU's workers busy for seconds.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from frontend_svc.api.requests import options_of
from kernelfarm.digest import program_keys
from kernelfarm.service.channels import channel_options
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceStub
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from kernelfarm.wire import graph_from_proto
from tests.chaos.call_journal import Ending, Journal, judged
from tests.support.hostile_requests import (
    CPU,
    Template,
    cat_of_dynamic_inputs,
    failing_graph,
    heavy_kernel,
    small_program,
)

LIMIT_S = 20.0
PROBE_LIMIT_S = 10.0
PROBE_EVERY_S = 1.0
SLOW_LIMIT_S = 60.0
PROBE = "new program (probe)"

_PAUSE_S = 0.25
_HITS = 4
_SLOW_PROGRAMS = 2
_SLOW_FUNCTIONS = 40


class Caller:
    """Calls of every kind on one channel."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self._endpoint = endpoint
        self._journal = Journal()
        self._numbers = itertools.count(seed * 1_000_000)
        self._random = random.Random(seed)
        options = [*channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(endpoint, options=options)
        self._stub = CompileServiceStub(channel)
        self._cache = CacheServiceStub(channel)
        self._hits = [request(small_program(), seed * 1_000 + n) for n in range(_HITS)]

    def run(self) -> None:
        """Calls until stdin ends: each kind in a thread, and a probe each second."""
        for work in (self._hit, self._look_up, self._dynamic, self._refused):
            threading.Thread(target=_forever, args=(work,), daemon=True).start()
        threading.Thread(target=_forever, args=(self._watch,), daemon=True).start()
        threading.Thread(target=self._probe_forever, daemon=True).start()
        for _ in sys.stdin:
            for _ in range(_SLOW_PROGRAMS):
                threading.Thread(target=_or_end, args=(self._slow,), daemon=True).start()

    def _probe_forever(self) -> None:
        while True:
            threading.Thread(target=_or_end, args=(self._probe,), daemon=True).start()
            time.sleep(PROBE_EVERY_S)

    def _slow(self) -> None:
        new = request(heavy_kernel(_SLOW_FUNCTIONS, CPU), next(self._numbers))
        self._compile("new slow program", new, SLOW_LIMIT_S)

    def _probe(self) -> None:
        new = request(small_program(), next(self._numbers))
        self._compile(PROBE, new, PROBE_LIMIT_S)

    def _hit(self) -> None:
        self._compile("hit by graph", self._random.choice(self._hits), LIMIT_S)

    def _dynamic(self) -> None:
        pieces = self._random.randint(2, 3)
        new = request(cat_of_dynamic_inputs(pieces), next(self._numbers))
        self._compile("new dynamic program", new, LIMIT_S)

    def _look_up(self) -> None:
        asked = self._random.choice(self._hits)
        key = own_key(asked)
        with self._journal.call("hit by key", LIMIT_S) as ending, _status(ending):
            found = self._stub.Lookup(api.LookupRequest(key=key), timeout=LIMIT_S)
            _judge(ending, is_right=found.program.key == key and bool(found.program.artifacts))

    def _refused(self) -> None:
        wrong = request(failing_graph(), next(self._numbers))
        with self._journal.call("graph to refuse", LIMIT_S) as ending, _status(ending):
            list(self._stub.Compile(wrong, timeout=LIMIT_S))
            _judge(ending, is_right=False)  # it cannot be compiled

    def _watch(self) -> None:
        """A stream of a few seconds; it should end by its deadline."""
        seconds = self._random.uniform(2, 6)
        asked = cache_api.WatchInvalidationsRequest()
        with self._journal.call("watch", seconds) as ending:
            with _status(ending):
                for _ in self._cache.WatchInvalidations(asked, timeout=seconds):
                    continue
                ending.status = "OK"
            if ending.status == grpc.StatusCode.DEADLINE_EXCEEDED.name:
                ending.status = "OK"

    def _compile(self, kind: str, asked: api.CompileRequest, limit_s: float) -> None:
        with self._journal.call(kind, limit_s) as ending, _status(ending):
            events = list(self._stub.Compile(asked, timeout=limit_s))
            programs = [event.program for event in events if event.HasField("program")]
            keys = [program.key for program in programs if program.artifacts]
            _judge(ending, is_right=keys == [own_key(asked)])


def request(template: Template, number: int) -> api.CompileRequest:
    """The request of copy `number`."""
    return api.CompileRequest.FromString(template.copy(number))


def own_key(asked: api.CompileRequest) -> bytes:
    """The program's key, computed by its caller."""
    return _key_of(asked.SerializeToString(deterministic=True))


@functools.lru_cache(maxsize=1024)
def _key_of(data: bytes) -> bytes:
    asked = api.CompileRequest.FromString(data)
    graph = graph_from_proto(asked.graph)
    return program_keys(graph, (CPU,), options_of(asked.options).key_pairs())[CPU]


@contextmanager
def _status(ending: Ending) -> Iterator[None]:
    """Records the status of a call that fails."""
    try:
        yield
    except grpc.RpcError as error:
        ending.status = error.code().name
        ending.detail = error.details() or ""


def _judge(ending: Ending, *, is_right: bool) -> None:
    ending.status = "OK"
    ending.verdict = judged(is_right=is_right)


def _forever(work: Callable[[], None]) -> None:
    while True:
        _or_end(work)
        time.sleep(_PAUSE_S)


def _or_end(work: Callable[[], None]) -> None:
    """Ends the process on any error outside of a call, so that the run reports it."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    Caller(sys.argv[1], int(sys.argv[2])).run()
