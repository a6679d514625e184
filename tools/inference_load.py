"""Load for `examples/inference_server`: requests in flight while it swaps eager for compiled.

`python -m tools.inference_load` starts the server as a process of its own, which compiles at the
farm of KERNELFARM_ENDPOINT. It fails if a request fails, if the server never swaps, or if an answer
of the compiled model differs from the eager one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IN_FLIGHT = 30
AFTER_SWAP = 60
"""Requests that the compiled model answers before the load ends."""
INPUTS = [[1 + (7 * n + k) % 999 for k in range(1 + n % 32)] for n in range(40)]
_LIMIT_S = 180.0
_REQUEST_LIMIT_S = 60.0


class InferenceLoadError(Exception):
    """The server failed; the message says how."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to `INPUTS[number]`; `by` is `eager` or `compiled`."""

    number: int
    by: str
    embedding: list[float]
    seconds: float


async def answers_across_swap(environment: Mapping[str, str]) -> list[Answer]:
    """All answers of a new server, in order, until the compiled model has given `AFTER_SWAP`.

    `environment` names the farm (KERNELFARM_ENDPOINT), beside the variables of this process.

    Raises:
        InferenceLoadError: a request failed, the server ended, or it did not swap in time.
    """
    answers: list[Answer] = []
    async with _running_server(environment) as port:
        clients = (_ask_until_swapped(port, client, answers) for client in range(IN_FLIGHT))
        try:
            async with asyncio.timeout(_LIMIT_S):
                await asyncio.gather(*clients)
        except TimeoutError as error:
            raise InferenceLoadError(
                f"after {_LIMIT_S:.0f} s and {len(answers)} answers the compiled model had given"
                f" {_compiled(answers)}; expected {AFTER_SWAP}"
            ) from error
    return answers


async def _ask_until_swapped(port: int, client: int, answers: list[Answer]) -> None:
    """Sends requests one after another."""
    number = client
    while _compiled(answers) < AFTER_SWAP:
        which = number % len(INPUTS)
        began_s = time.monotonic()
        status, body = await _post(port, {"token_ids": INPUTS[which]})
        if status != 200:
            raise InferenceLoadError(f"status {status}: {body}; expected 200")
        took_s = time.monotonic() - began_s
        answers.append(Answer(which, body["by"], body["embedding"], took_s))
        number += IN_FLIGHT


def _compiled(answers: list[Answer]) -> int:
    return sum(answer.by == "compiled" for answer in answers)


@contextlib.asynccontextmanager
async def _running_server(environment: Mapping[str, str]) -> AsyncIterator[int]:
    """The server's port. It must end in order."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = int(reserved.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.inference_server", "--listen", f"127.0.0.1:{port}"],
        env={**os.environ, **environment},
        cwd=ROOT,
    )
    try:
        await _wait_until_it_answers(process, port)
        yield port
        process.terminate()
        ended = await asyncio.to_thread(process.wait, _REQUEST_LIMIT_S)
        if ended not in (0, -signal.SIGTERM):  # uvicorn raises the signal again at the end
            raise InferenceLoadError(f"the server ended with {ended}; expected 0 after SIGTERM")
    finally:
        process.kill()
        process.wait()


async def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    ends_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < ends_s:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        if process.poll() is not None:
            raise InferenceLoadError(f"the server ended with {process.returncode} at its start")
        await asyncio.sleep(0.05)
    raise InferenceLoadError(f"the server did not listen within {_LIMIT_S:.0f} s")


async def _post(port: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of a request to embed."""
    content = json.dumps(body).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}"
    try:
        async with asyncio.timeout(_REQUEST_LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode() + b"\r\n\r\n" + content)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
    except OSError as error:  # a TimeoutError is one
        raise InferenceLoadError(f"a request failed: {error!r}") from error
    first, separator, rest = answer.partition(b"\r\n\r\n")
    if not separator:
        raise InferenceLoadError(f"the server closed the connection after {answer!r}")
    return int(first.split()[1]), json.loads(rest)


def check_answers(answers: list[Answer]) -> None:
    """Compares the answers of both models.

    Raises:
        InferenceLoadError: the first answer was not eager, or the models disagree.
    """
    if answers[0].by != "eager":
        raise InferenceLoadError(f"the first answer was {answers[0].by}; expected eager")
    eager = {answer.number: answer.embedding for answer in answers if answer.by == "eager"}
    for answer in answers:
        expected = eager.get(answer.number, answer.embedding)
        # The framework computes sums of 64 products in f32 in another order.
        if not all(
            math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5)
            for a, b in zip(answer.embedding, expected, strict=True)
        ):
            raise InferenceLoadError(
                f"input {answer.number}: {answer.by} answered {answer.embedding}, eager {expected}"
            )


def main() -> int:
    """Returns 0 if no request failed, else 1 with the reason on stderr."""
    try:
        answers = asyncio.run(answers_across_swap({}))
        check_answers(answers)
    except InferenceLoadError as error:
        sys.stderr.write(f"inference-load: {error}\n")
        return 1
    compiled = _compiled(answers)
    slowest_ms = 1e3 * max(answer.seconds for answer in answers)
    print(
        f"inference-load: {len(answers)} requests, {IN_FLIGHT} in flight, none failed:"
        f" {len(answers) - compiled} eager, {compiled} compiled; slowest {slowest_ms:.0f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
