"""The HTTP interface: `POST /embed` with token ids, `GET /health`.

Requests wait in a bounded queue for one of a few threads, so that a burst is refused with status
503 instead of taking all memory, and the event loop never runs the model itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.inference_server.swapping_model import SwappingModel
from examples.model_zoo import built

TOKENS = 32
"""Every batch has this length; shorter inputs are padded and masked, so one program serves all."""
VOCABULARY = 1000
MAX_BODY_BYTES = 64 * 1024
MAX_IN_FLIGHT = 64
THREADS = 2


def text_encoder() -> torch.nn.Module:
    """A small BERT with seeded weights; a real server loads trained ones."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return built("Bert", "Model", vocab_size=VOCABULARY, intermediate_size=256, **sizes)


class Embedder(torch.nn.Module):
    """The mean of the last hidden state over the tokens that are not padding."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Shapes: ids, mask: (1, tokens) -> (1, width)."""
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


def make_app() -> Starlette:
    """The application; it begins to compile when it starts, and serves at once."""
    embedder = Embedder(text_encoder()).eval()
    model = SwappingModel(embedder, padded(list(range(1, TOKENS))))
    threads = ThreadPoolExecutor(THREADS, "model")
    in_flight = 0

    async def embed(request: Request) -> JSONResponse:
        nonlocal in_flight
        try:
            token_ids = checked_ids(await body_of(request))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        if in_flight >= MAX_IN_FLIGHT:
            return JSONResponse({"error": "too many requests; retry"}, 503, {"Retry-After": "1"})
        in_flight += 1
        try:
            loop = asyncio.get_running_loop()
            result, state = await loop.run_in_executor(threads, model, *padded(token_ids))
        finally:
            in_flight -= 1
        return JSONResponse({"embedding": result[0].tolist(), "by": state})

    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"model": model.state})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        model.start()
        yield
        await asyncio.to_thread(model.close)
        threads.shutdown()

    routes = [Route("/embed", embed, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan)


def padded(token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and their mask, both of shape (1, TOKENS)."""
    ids, mask = torch.zeros(1, TOKENS, dtype=torch.int64), torch.zeros(1, TOKENS, dtype=torch.int64)
    ids[0, : len(token_ids)] = torch.tensor(token_ids)
    mask[0, : len(token_ids)] = 1
    return ids, mask


async def body_of(request: Request) -> bytes:
    """The body of a request.

    Raises:
        ValueError: it is too long.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"a body of more than {MAX_BODY_BYTES} bytes")
    return bytes(body)


def checked_ids(body: bytes) -> list[int]:
    """The token ids of a request: `{"token_ids": [1, 2, 3]}`.

    Raises:
        ValueError: the body is something else; the message says what is expected.
    """
    data = json.loads(body)
    token_ids = data.get("token_ids") if isinstance(data, dict) else None
    is_list = isinstance(token_ids, list) and 0 < len(token_ids) <= TOKENS
    if not is_list or not all(type(i) is int and 0 <= i < VOCABULARY for i in token_ids):
        raise ValueError(
            f"expected {{'token_ids': [...]}} with 1 to {TOKENS} integers from 0 to"
            f" {VOCABULARY - 1}"
        )
    return list(token_ids)
