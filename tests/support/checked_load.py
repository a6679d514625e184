"""Callers of a farm that always have calls in flight, and check every result.

Half of them use the client's library, half plain gRPC as `examples/plain_client` does. Each asks
for programs that the farm has, and for new ones. Programs are verified, run, and compared with
NumPy.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from examples.plain_client.compiled import Compiled, compile_graph
from examples.plain_client.repeat import open_channel
from examples.plain_client.run import run
from kernelfarm.client.farm.call_retry import repeated_while_lost
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import KernelfarmError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.signing.key_files import read_keyring
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.wire import graph_to_proto
from kernelfarm.wire.status import error_from_rpc
from tests.support.hostile_requests import unary_graph
from tests.support.small_graphs import CPU, tensor

LIBRARY, PLAIN = "library", "plain"
CALL_S = 60.0
_HITS = 8
_NEW_OF_ALL = 0.25
_ROWS, _COLUMNS = 16, 32
_MUL = "aten.mul.Tensor"


@dataclass(frozen=True)
class CheckedCall:
    """A call that ended; `status` is OK, or that of the error, and `error` its message."""

    caller: str
    is_new: bool
    began_s: float
    seconds: float
    status: str = "OK"
    error: str = ""


@dataclass
class CheckedLoad:
    """The calls that have ended, in the order of their ends, and wrong results."""

    calls: list[CheckedCall] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    in_flight: int = 0

    def statuses(self, first: int = 0) -> Counter[str]:
        """How often each status occurred, from call `first` on."""
        return Counter(call.status for call in self.calls[first:])

    def failures(self) -> list[CheckedCall]:
        """The calls that failed."""
        return [call for call in self.calls if call.status != "OK"]

    def served_since(self, time_s: float, *, is_new: bool) -> int:
        """How many calls that began since then succeeded."""
        ended = self.calls
        return sum(
            call.status == "OK" and call.is_new is is_new and call.began_s >= time_s
            for call in ended
        )

    def longest_s(self, first: int = 0) -> float:
        """The time of the longest call, from call `first` on."""
        return max((call.seconds for call in self.calls[first:]), default=0.0)

    def describe(self) -> str:
        """Numbers of calls by status, and times of successful ones."""
        lines = [f"statuses: {dict(self.statuses())}, wrong: {len(self.wrong)}"]
        for caller, is_new in itertools.product((LIBRARY, PLAIN), (False, True)):
            seconds = sorted(
                c.seconds
                for c in self.calls
                if (c.caller, c.is_new, c.status) == (caller, is_new, "OK")
            )
            if seconds:
                p50, p99 = (seconds[len(seconds) * p // 100] for p in (50, 99))
                kind = "new" if is_new else "hits"
                lines.append(
                    f"{caller}, {kind}: {len(seconds)} calls, p50 {p50 * 1e3:.0f} ms, p99"
                    f" {p99 * 1e3:.0f} ms, longest {seconds[-1]:.1f} s"
                )
        return "\n".join(lines)


class _Checker:
    """Runs programs and compares their results with NumPy; equal contents once."""

    def __init__(self) -> None:
        self._known: set[tuple[int, bytes]] = set()
        generator = np.random.default_rng(0)
        self._input = generator.normal(size=(_ROWS, _COLUMNS)).astype(np.float32)

    def fault(self, number: int, compiled: Compiled) -> str:
        """What is wrong with the result of program `number`; empty if it is right."""
        digest = hashlib.sha256(b"".join(sorted(compiled.binaries)))
        digest.update(compiled.program.plan.SerializeToString(deterministic=True))
        name = (number, digest.digest())
        if name in self._known:
            return ""
        (result,) = run(compiled, [self._input])
        expected = -np.abs(self._input) * np.float32(constant(number))
        if not np.array_equal(result, expected):
            return f"program {number} differs by {np.max(np.abs(result - expected))}"
        self._known.add(name)
        return ""


def graph(number: int) -> Graph:
    """`-abs(x) * constant(number)`."""
    source = tensor(_ROWS, _COLUMNS)
    steps = [("aten.abs.default", ()), ("aten.neg.default", ()), (_MUL, (constant(number),))]
    return unary_graph(source, steps)


def constant(number: int) -> float:
    """The factor of program `number`: others differ in 32-bit floats, too."""
    return 1.0 + number / 64


@contextmanager
def checked_load(endpoints: Sequence[str], keys: Path, callers: int) -> Iterator[CheckedLoad]:
    """Runs the callers inside the context; each has one call in flight, without a pause."""
    load, checker = CheckedLoad(), _Checker()
    stop, lock = threading.Event(), threading.Lock()
    numbers = itertools.count(_HITS)

    def repeat(caller: str, compiled: Callable[[int], Compiled], dice: random.Random) -> None:
        while not stop.is_set():
            is_new = dice.random() < _NEW_OF_ALL
            number = next(numbers) if is_new else dice.randrange(_HITS)
            with lock:
                load.in_flight += 1
            call, fault = _called(caller, is_new, lambda n=number: compiled(n), number, checker)
            with lock:
                load.in_flight -= 1
                load.calls.append(call)
                if fault:
                    load.wrong.append(f"{caller}: {fault}")

    kinds = list(itertools.product((LIBRARY, PLAIN), endpoints))
    clients = [
        _LibraryCaller(e, keys) if kind == LIBRARY else _PlainCaller(e, keys) for kind, e in kinds
    ]
    threads = []
    for index in range(callers):
        (kind, _), client = kinds[index % len(kinds)], clients[index % len(kinds)]
        arguments = (kind, client.compiled, random.Random(index))
        threads.append(threading.Thread(target=repeat, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        stop.set()
        for thread in threads:
            thread.join(2 * CALL_S)
        for client in clients:
            client.close()


def _called(
    caller: str, is_new: bool, call: Callable[[], Compiled], number: int, checker: _Checker
) -> tuple[CheckedCall, str]:
    """The call as it ended, and what was wrong with its result."""
    began_s = time.monotonic()
    try:
        compiled = call()
    except (KernelfarmError, grpc.RpcError) as error:
        seconds = time.monotonic() - began_s
        known = error_from_rpc(error) if isinstance(error, grpc.RpcError) else error
        return CheckedCall(caller, is_new, began_s, seconds, known.status, str(known)), ""
    except Exception as error:  # a result that cannot be used is a wrong one
        return CheckedCall(caller, is_new, began_s, 0.0, "WRONG", repr(error)), repr(error)
    seconds = time.monotonic() - began_s
    return CheckedCall(caller, is_new, began_s, seconds), checker.fault(number, compiled)


class _PlainCaller:
    """`examples/plain_client` with one channel for all callers."""

    def __init__(self, endpoint: str, keys: Path) -> None:
        self._channel = open_channel(endpoint)
        self._keyring = read_keyring(keys)

    def compiled(self, number: int) -> Compiled:
        """A verified program with its binaries."""
        message = graph_to_proto(graph(number))
        return compile_graph(self._channel, message, CPU, self._keyring, CALL_S)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


class _LibraryCaller:
    """The library's client, which callers share as the graphs of one process do."""

    def __init__(self, endpoint: str, keys: Path) -> None:
        settings = {"endpoint": endpoint, "trusted_keys_file": keys, "timeout_s": CALL_S}
        self._client = FarmClient(ClientSettings(**settings))

    def compiled(self, number: int) -> Compiled:
        """A verified program with its binaries, asked for as the programs of graphs are."""
        return repeated_while_lost(lambda: self._compiled(number))

    def _compiled(self, number: int) -> Compiled:
        (program,) = self._client.compile(graph(number), [CPU])
        digests = [artifact.binary.sha256 for kernel in program.kernels for artifact in kernel]
        content = api.ProgramResult.FromString(program.content)
        return Compiled(content, self._client.read_blobs(digests))

    def close(self) -> None:
        """Closes the channel."""
        self._client.close()
