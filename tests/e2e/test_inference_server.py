"""`examples/inference_server` under load: no request fails while it swaps."""

from __future__ import annotations

import json

import pytest
import torch

from examples.inference_server.app import Embedder, checked_ids, padded, text_encoder
from tests.support.farm import Farm
from tools.inference_load import AFTER_SWAP, IN_FLIGHT, INPUTS, answers_across_swap


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
    answers = await answers_across_swap({"KERNELFARM_ENDPOINT": farm.endpoint})
    for answer in answers:
        # The framework computes sums of 64 products in f32 in another order.
        torch.testing.assert_close(
            torch.tensor(answer.embedding), expected[answer.number], rtol=1e-4, atol=1e-5
        )
    states = [answer.by for answer in answers]
    assert states[0] == "eager"  # the server did not wait for the farm
    assert states.count("compiled") >= AFTER_SWAP
    assert states.count("eager") > IN_FLIGHT
