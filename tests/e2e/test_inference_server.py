"""`examples/inference_server` under load: no request fails while it swaps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.inference_server.app import Embedder, checked_ids, padded, text_encoder
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.ports import reserved_port

ROOT = Path(__file__).parents[2]
IN_FLIGHT = 30
AFTER_SWAP = 60
"""Requests that the compiled model answers before the load ends."""
INPUTS = [[1 + (7 * n + k) % 999 for k in range(1 + n % 32)] for n in range(40)]


@pytest.mark.parametrize(
    "body",
    [
        *("", "[]", '{"token_ids": []}', '{"token_ids": [1000]}', '{"token_ids": [true]}'),
        *('{"token_ids": "1"}', '{"token_ids": [1.5]}', json.dumps({"token_ids": [1] * 33})),
    ],
)
def test_wrong_requests_are_refused(body: str) -> None:
    with pytest.raises(ValueError):
        checked_ids(body.encode())


@pytest.mark.slow  # the server traces and compiles a model: half a minute of processor time
async def test_30_requests_in_flight_survive_the_swap(farm: Farm) -> None:
    eager = Embedder(text_encoder()).eval()
    with torch.inference_mode():
        expected = [eager(*padded(ids))[0] for ids in INPUTS]
    async with running_server(farm) as port:
        states: list[str] = []
        await asyncio.gather(
            *(ask_until_swapped(port, n, expected, states) for n in range(IN_FLIGHT))
        )
    assert states[0] == "eager"  # the server did not wait for the farm
    assert states.count("compiled") >= AFTER_SWAP
    assert states.count("eager") > IN_FLIGHT


async def ask_until_swapped(
    port: int, client: int, expected: list[torch.Tensor], states: list[str]
) -> None:
    """Sends requests one after another; each answer must be that of the eager model."""
    number = client
    while states.count("compiled") < AFTER_SWAP:
        ids = INPUTS[number % len(INPUTS)]
        status, answer = await post(port, {"token_ids": ids})
        assert status == 200, answer
        # The framework computes sums of 64 products in f32 in another order.
        torch.testing.assert_close(
            torch.tensor(answer["embedding"]), expected[number % len(INPUTS)], rtol=1e-4, atol=1e-5
        )
        states.append(answer["by"])
        number += IN_FLIGHT


@contextlib.asynccontextmanager
async def running_server(farm: Farm) -> AsyncIterator[int]:
    """The server as a process of its own; it must end in order."""
    with reserved_port() as port:
        async with _started(farm, port):
            yield port


@contextlib.asynccontextmanager
async def _started(farm: Farm, port: int) -> AsyncIterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.inference_server", "--listen", f"127.0.0.1:{port}"],
        env={**os.environ, "KERNELFARM_ENDPOINT": farm.endpoint},
        cwd=ROOT,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                with contextlib.suppress(OSError):
                    await post(port, {"token_ids": [1]})
                    break
                assert process.poll() is None
                await asyncio.sleep(0.05)
        yield
        process.terminate()
        ended = await asyncio.to_thread(process.wait, TIMEOUT_S)
        assert ended in (0, -signal.SIGTERM)  # uvicorn raises the signal again at the end
    finally:
        process.kill()
        process.wait()


async def post(port: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of a request to embed."""
    content = json.dumps(body).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}"
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"\r\n\r\n" + content)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(rest)
