"""Requests at full rate: `python -m tests.soak.load ENDPOINT REQUESTS`, the token on stdin.

Of 100 requests, one is a new small program and four are refused, each for another reason; the
others are hits. At the same time a watch is opened repeatedly. Prints the number of completed
requests from time to time, and at the end their number by status as JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import grpc

from kernelfarm.service.channels import channel_options
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceStub
from tests.support.hostile_requests import failing_graph, long_operator_name, small_program

COMPILE = "/kernelfarm.v1.CompileService/Compile"
LOOKUP = "/kernelfarm.v1.CompileService/Lookup"
THREADS = 8
REPORT_EVERY = 100

_LIMIT_S = 60.0
_HITS = 4
_NAME_BYTES = 128 * 1024
_stdout = threading.Lock()
_FIRST_NEW = 1_000_000
_BAD_TOKEN = "kft_000000000000_" + "A" * 43


class Load:
    """The requests by number: every run sends the same ones."""

    def __init__(self, endpoint: str, token: str) -> None:
        options = [*channel_options(), ("grpc.enable_retries", 0)]
        self._channel = grpc.insecure_channel(endpoint, options=options)
        self._own = (("authorization", f"Bearer {token}"),)
        self._strange = (("authorization", f"Bearer {_BAD_TOKEN}"),)
        small, long, failing = small_program(), long_operator_name(_NAME_BYTES), failing_graph()
        self._hits = [small.copy(number) for number in range(_HITS)]
        self._keys = [self._compiled(data) for data in self._hits]
        self._seldom: dict[int, Callable[[int], str]] = {
            0: lambda n: self._compile(small.copy(_FIRST_NEW + n)),
            1: lambda n: self._compile(long.copy(n), self._strange),
            2: lambda n: self._compile(b"\x12\xff\xff" + n.to_bytes(8)),
            3: lambda n: self._compile(long.copy(n)),
            4: lambda n: self._compile(failing.copy(n)),
        }
        self.statuses: Counter[str] = Counter()

    def send(self, number: int) -> None:
        """Sends the request of this number."""
        work = self._seldom.get(number % 100)
        if work is not None:
            status = work(number)
        elif number % 2:
            status = self._compile(self._hits[number // 2 % _HITS])
        else:
            status = self._look_up(self._keys[number // 2 % _HITS])
        self.statuses[status] += 1

    def watch_again(self) -> None:
        """Watches for a second."""
        stub = CacheServiceStub(self._channel)
        request = cache_api.WatchInvalidationsRequest()
        try:
            for _ in stub.WatchInvalidations(request, timeout=1.0, metadata=self._own):
                continue
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self.statuses[f"watch {error.code().name}"] += 1
                time.sleep(1.0)

    def _compiled(self, data: bytes) -> bytes:
        call: grpc.UnaryStreamMultiCallable[bytes, api.CompileResponse] = (
            self._channel.unary_stream(
                COMPILE, response_deserializer=api.CompileResponse.FromString
            )
        )
        *_, last = call(data, timeout=_LIMIT_S, metadata=self._own)
        return last.program.key

    def _compile(self, data: bytes, metadata: tuple[tuple[str, str], ...] | None = None) -> str:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(COMPILE)
        try:
            for _ in call(data, timeout=_LIMIT_S, metadata=metadata or self._own):
                continue
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def _look_up(self, key: bytes) -> str:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(LOOKUP)
        request = api.LookupRequest(key=key).SerializeToString()
        try:
            call(request, timeout=_LIMIT_S, metadata=self._own)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def write_line(line: str) -> None:
    """Writes a line in one call, so that lines of several threads do not mix."""
    with _stdout:
        print(line, flush=True)


def main() -> None:
    endpoint, requests = sys.argv[1], int(sys.argv[2])
    load = Load(endpoint, sys.stdin.readline().strip())
    numbers, is_over = itertools.count(), threading.Event()

    def send_all() -> None:
        for number in numbers:
            if number >= requests:
                return
            load.send(number)
            if number % REPORT_EVERY == 0:
                write_line(str(number))

    def watch_all() -> None:
        while not is_over.is_set():
            load.watch_again()

    threads = [threading.Thread(target=send_all) for _ in range(THREADS)]
    watcher = threading.Thread(target=watch_all)
    for thread in (*threads, watcher):
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    watcher.join()
    write_line(json.dumps(load.statuses))


if __name__ == "__main__":
    main()
