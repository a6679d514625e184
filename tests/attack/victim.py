"""Latencies of a legitimate tenant: hits by key and by graph, and small new programs.

Each kind of call has a thread that sends one call after another, with a pause in between, so that
the measurement itself puts little load on the farm.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from kernelfarm.service.channels import open_blocking_channel
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from tests.support.hostile_requests import CPU, CUDA, small_program

HIT_KINDS = ("Lookup hit", "Compile hit")
NEW_KINDS = (f"new for {CPU}", f"new for {CUDA}")
KINDS = (*HIT_KINDS, *NEW_KINDS)
LIMIT_S = 30.0
"""A call that takes longer has failed, and counts as this long."""

_MARGIN_S = 10.0
_PAUSES_S = {"Lookup hit": 0.02, "Compile hit": 0.02}
_PAUSE_OF_NEW_S = 0.25
_numbers = itertools.count(int(time.time()) % 100_000 * 1_000)


@dataclass
class Waits:
    """Seconds of each call of one kind, and the statuses of failed calls."""

    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def percentile(self, percent: int) -> float:
        """A percentile of the seconds, by nearest rank."""
        ordered = sorted(self.seconds)
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else LIMIT_S

    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds) if self.seconds else LIMIT_S


class Victim:
    """One tenant with programs that were compiled before."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint
        self._token = token
        self._hit = _request(CPU)
        self._key = b""

    def prepare(self, targets: Sequence[str] = (CPU, CUDA)) -> None:
        """Compiles the program of later hits, and one for each target to warm its worker."""
        with self._stub() as stub:
            self._key = compiled(stub, self._hit, 120.0).key
            for target in targets:
                compiled(stub, _request(target), 120.0)

    def measure(self, seconds: float, kinds: Sequence[str] = KINDS) -> dict[str, Waits]:
        """Sends calls of these kinds for some time; returns up to `LIMIT_S` later if a call hangs.

        A call that does not even end at its deadline is reported as `NO_ANSWER`.
        """
        waits = {kind: Waits() for kind in kinds}
        ends_s = time.monotonic() + seconds
        threads = {
            kind: threading.Thread(
                target=self._repeat, args=(kind, waits[kind], ends_s), daemon=True
            )
            for kind in kinds
        }
        for thread in threads.values():
            thread.start()
        for kind, thread in threads.items():
            thread.join(max(0.0, ends_s + LIMIT_S + _MARGIN_S - time.monotonic()))
            if thread.is_alive():
                waits[kind].failures["NO_ANSWER"] += 1
                waits[kind].seconds.append(LIMIT_S)
        return waits

    def serves_within(self, timeout_s: float) -> float | None:
        """Seconds until a new program for the CPU was compiled; None if it was not in time."""
        began_s = time.monotonic()
        while (left_s := began_s + timeout_s - time.monotonic()) > 0:
            try:
                with self._stub() as stub:
                    compiled(stub, _request(CPU), left_s)
            except grpc.RpcError:
                time.sleep(0.2)
                continue
            return time.monotonic() - began_s
        return None

    def _repeat(self, kind: str, waits: Waits, ends_s: float) -> None:
        with self._stub() as stub:
            while time.monotonic() < ends_s:
                call = self._call(kind, stub)
                began_s = time.perf_counter()
                try:
                    call()
                except grpc.RpcError as error:
                    waits.failures[error.code().name] += 1
                    waits.seconds.append(LIMIT_S)
                else:
                    waits.seconds.append(time.perf_counter() - began_s)
                time.sleep(_PAUSES_S.get(kind, _PAUSE_OF_NEW_S))

    def _call(self, kind: str, stub: CompileServiceStub) -> Callable[[], object]:
        if kind == "Lookup hit":
            lookup = api.LookupRequest(key=self._key)
            return lambda: stub.Lookup(lookup, timeout=LIMIT_S)
        request = self._hit if kind == "Compile hit" else _request(kind.rsplit(maxsplit=1)[-1])
        return lambda: compiled(stub, request, LIMIT_S)

    @contextmanager
    def _stub(self) -> Iterator[CompileServiceStub]:
        with open_blocking_channel(self._endpoint, None, self._token) as channel:
            yield CompileServiceStub(channel)


def compiled(
    stub: CompileServiceStub, request: api.CompileRequest, timeout_s: float
) -> api.ProgramResult:
    """The program of a request with one target.

    Raises:
        grpc.RpcError: the call failed.
        RuntimeError: the call succeeded without a program.
    """
    events: Iterator[api.CompileResponse] = stub.Compile(request, timeout=timeout_s)
    programs = [e.program for e in events if e.WhichOneof("event") == "program"]
    if len(programs) != 1:
        raise RuntimeError(f"a Compile call ended with {len(programs)} programs; expected 1")
    return programs[0]


def _request(target: str) -> api.CompileRequest:
    """A request for a new program."""
    return api.CompileRequest.FromString(small_program(target).copy(next(_numbers)))
