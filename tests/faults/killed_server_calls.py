"""Calls of a server that is killed again and again: `python -m tests.faults.killed_server_calls N`.

Exits with the number of calls that never ended.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter

import grpc

from kernelfarm.service.channels import open_blocking_channel
from tests.support.ports import reserved_port

CALLERS = 16

LIMIT_S = 2.0

MARGIN_S = 15.0

SERVER = """
import asyncio, sys, grpc
async def answer(request, context):
    yield b"first"
    await asyncio.sleep(0.3)
    yield b"second"
async def main():
    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", {"S": handler})])
    server.add_insecure_port(sys.argv[1])
    await server.start()
    print("serves", flush=True)
    await server.wait_for_termination()
asyncio.run(main())
"""


class Callers:
    """Threads that call until `end`; `began_s` holds when the present call of each began."""

    def __init__(self, address: str) -> None:
        self.began_s: dict[int, float] = {}
        self.statuses: Counter[str] = Counter()
        self._is_over = threading.Event()
        self._channels = [open_blocking_channel(address) for _ in range(CALLERS)]
        for number, channel in enumerate(self._channels):
            threading.Thread(target=self._call, args=(number, channel), daemon=True).start()

    def end(self) -> None:
        self._is_over.set()

    def _call(self, number: int, channel: grpc.Channel) -> None:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/t.T/S")
        while not self._is_over.is_set():
            self.began_s[number] = time.monotonic()
            try:
                list(stream(b"", timeout=LIMIT_S))
                self.statuses["OK"] += 1
            except grpc.RpcError as error:
                self.statuses[error.code().name] += 1
                time.sleep(0.02)
            del self.began_s[number]


def call_under_kills(kills: int) -> int:
    """How many calls never ended while their server was killed so often."""
    with reserved_port() as port:
        return _call_under_kills(f"127.0.0.1:{port}", kills)


def _call_under_kills(address: str, kills: int) -> int:
    callers, dice = Callers(address), random.Random(3)
    for _ in range(kills):
        command = [sys.executable, "-c", SERVER, address]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()  # it serves
        time.sleep(dice.uniform(0.5, 1.0))
        server.kill()
        server.wait()
        time.sleep(dice.choice([0.0, 0.05, 0.5]))
    callers.end()
    until_s = time.monotonic() + LIMIT_S + MARGIN_S
    while callers.began_s and time.monotonic() < until_s:
        time.sleep(0.1)
    print(dict(callers.statuses), "never ended:", len(callers.began_s), flush=True)
    return len(callers.began_s)


if __name__ == "__main__":
    os._exit(min(call_under_kills(int(sys.argv[1])), 100))  # without waiting for the threads
