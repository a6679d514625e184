"""Calls to a server that is killed again and again: each ends within its deadline."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import grpc
import pytest

from kernelfarm.client.repeats import repeated
from kernelfarm.errors import NoAnswerError
from kernelfarm.service.channels import channel_options
from tests.farm_process import wait_until

SERVER = """
import asyncio, sys
import grpc

async def answer(request, context):
    yield b"first"
    await asyncio.sleep(0.3)
    yield b"last"

async def main():
    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", {"S": handler})])
    port = server.add_insecure_port(sys.argv[1])
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""

THREADS = 16
DEADLINE_S = 2.0


class Server:
    """A server as a child process, always at the same port."""

    def __init__(self) -> None:
        self._process = self._started("127.0.0.1:0")
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def restart(self) -> None:
        self.kill()
        self._process = self._started(self.address)

    def _started(self, address: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SERVER, address]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_no_call_outlives_its_deadline_when_servers_die(kills):
    server, ends = Server(), threading.Event()
    channels = [grpc.insecure_channel(server.address, options=channel_options()) for _ in range(4)]
    codes: list[grpc.StatusCode] = []

    def call(channel: grpc.Channel) -> None:
        ask = channel.unary_stream("/t.T/S")
        while not ends.is_set():
            try:
                assert list(ask(b"", timeout=DEADLINE_S)) == [b"first", b"last"]
            except grpc.RpcError as error:
                codes.append(error.code())

    threads = [
        threading.Thread(target=call, args=(channels[number % len(channels)],), daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for _ in range(kills):
        seen = len(codes)
        server.restart()
        wait_until(lambda seen=seen: len(codes) > seen, 60, "calls fail when their server dies")
    ends.set()
    began = time.monotonic()
    for thread in threads:
        thread.join(max(0.0, 60 - (time.monotonic() - began)))
    server.kill()
    assert not [thread for thread in threads if thread.is_alive()]
    assert set(codes) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    for channel in channels:
        channel.close()


def test_a_call_that_no_process_answers_is_repeated():
    answers = iter([NoAnswerError("gone"), NoAnswerError("gone"), "here"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert repeated(ask, timeout_s=60) == "here"


def test_a_service_that_stays_away_is_asked_four_times():
    asked = []

    def ask() -> None:
        asked.append(1)
        raise NoAnswerError("gone")

    with pytest.raises(NoAnswerError):
        repeated(ask, timeout_s=60)
    assert len(asked) == 4
