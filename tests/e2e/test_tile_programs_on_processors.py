"""Tile programs of TileLang in models on this processor, compiled by a whole farm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import kernelfarm
from kernelfarm.client import counters
from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.written import written_params
from kernelfarm.errors import TileProgramError
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.tile_programs import CASES, Array, program_text

_OPTIONS = {"mode": "strict", "timeout_s": float(TIMEOUT_S)}


def _tensors(name: str) -> list[torch.Tensor]:
    tensors = []
    for buffer in CASES[name].buffers():
        is_bf16 = buffer.dtype.name == "bfloat16"
        own = buffer.astype(np.float32) if is_bf16 else buffer
        tensor = torch.from_numpy(own)
        tensors.append(tensor.bfloat16() if is_bf16 else tensor)
    return tensors


def _check(found: Mapping[int, torch.Tensor], name: str) -> None:
    expected: Mapping[int, Array] = CASES[name].expected(CASES[name].buffers())
    for position, exact in expected.items():
        error = np.abs(found[position].double().numpy() - exact).max() / np.abs(exact).max()
        assert error <= CASES[name].tolerance, f"result {position}: error {error}"


@pytest.fixture
def _no_eager_calls() -> Iterator[None]:
    """Checks that no call of the test ran eager."""
    before = counters.snapshot().get("runner.eager_calls", 0)
    yield
    assert counters.snapshot().get("runner.eager_calls", 0) == before


def _compiled(model: Callable[..., Any], farm: Farm, **more: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {**_OPTIONS, "endpoint": farm.endpoint}
    return torch.compile(model, backend="kernelfarm", options=options, **more)


@pytest.mark.sweep
@pytest.mark.usefixtures("_no_eager_calls")
@pytest.mark.parametrize("name", CASES)
def test_a_program_that_writes_arguments_is_right_in_a_model(name: str, farm: Farm) -> None:
    written = written_params(read_program(program_text(name)))
    function = kernelfarm.tilelang_function(program_text(name), outputs=[])

    def model(*args: torch.Tensor) -> torch.Tensor:
        function(*args)
        return args[written[0]] * 2

    tensors = _tensors(name)
    doubled = _compiled(model, farm)(*tensors)

    _check(dict(enumerate(tensors)), name)
    assert torch.equal(doubled, tensors[written[0]] * 2)


@pytest.mark.usefixtures("_no_eager_calls")
@pytest.mark.parametrize("name", ["matrix_add", "matmul", "attention", "softmax"])
def test_the_result_of_a_program_is_used_in_a_model(name: str, farm: Farm) -> None:
    (output,) = written_params(read_program(program_text(name)))
    function = kernelfarm.tilelang_function(program_text(name), outputs=[output])
    given = [tensor for n, tensor in enumerate(_tensors(name)) if n != output]

    result = _compiled(lambda *args: function(*args) * 2, farm)(*given)

    _check({output: result / 2}, name)


@pytest.mark.usefixtures("_no_eager_calls")
def test_a_size_that_varies_is_an_argument(farm: Farm) -> None:
    function = kernelfarm.tilelang_function(program_text("matmul_varying"), outputs=[2])
    model = _compiled(lambda a, b: function(a, b).abs(), farm, dynamic=True)
    b = torch.randn(64, 48).half()
    for rows in (77, 32, 130):
        a = torch.randn(rows, 64).half()
        torch.testing.assert_close(model(a, b), (a.float() @ b.float()).abs())


def test_without_a_compiled_model_the_function_says_where_it_runs() -> None:
    function = kernelfarm.tilelang_function(program_text("matrix_add"), outputs=[2])
    with pytest.raises(TileProgramError, match="only within a model that is compiled"):
        function(torch.zeros(100, 70), torch.zeros(100, 70))


def test_a_program_alone_is_compiled_for_a_processor(farm: Farm) -> None:
    compiled = kernelfarm.compile_tilelang(
        program_text("matmul"), ["cpu:x86-64-v3"], endpoint=farm.endpoint, timeout_s=TIMEOUT_S
    )

    texts = compiled.texts("cpu:x86-64-v3")
    assert "tt.dot" in texts["ttir"]
    assert "vfmadd" in texts["asm"]
    assert compiled.binary("cpu:x86-64-v3").startswith(b"\x7fELF")
