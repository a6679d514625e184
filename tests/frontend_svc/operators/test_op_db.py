"""PyTorch's own operator database as an independent check: hundreds of operators, many samples.

Traced operators are captured as a client captures them; torch runs operators that are not in the
table. Random results are not compared.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from tests.support.captured_graphs import run_lowered

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

pytestmark = pytest.mark.slow

SAMPLES_EACH = 4
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
RANDOM = ("rand", "bernoulli", "dropout", "normal", "multinomial", "empty")
WITHOUT_VALUE_SEMANTICS = {
    "as_strided",
    "resize_",
    "as_strided_scatter",
    "nn.functional.embedding_bag",
}
"""Results of these depend on memory, or on shapes other than the traced ones."""


class Sample:
    """One call of an operator, as a function of its tensors."""

    def __init__(self, info: OpInfo, sample: SampleInput) -> None:
        self._info = info
        parts = (sample.input, sample.args, sample.kwargs)
        self._leaves, self._spec = pytree.tree_flatten(parts)
        self._places = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self._leaves[position].detach().clone() for position in self._places]

    def __call__(self, *tensors: torch.Tensor) -> list[Any]:
        leaves = list(self._leaves)
        for position, tensor in zip(self._places, tensors, strict=True):
            leaves[position] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return pytree.tree_leaves(self._info.op(first, *args, **kwargs))

    def captured(self) -> CapturedGraph | None:
        """The graph as a client would send it; None if it would send none."""
        try:
            function = torch.func.functionalize(self.__call__)
            module = make_fx(function, tracing_mode="fake")(*self.tensors)
            module.graph.eliminate_dead_code()
            return capture(module, copies_arguments=True)
        except Exception:
            # Complex numbers, sizes that depend on data, operators that do not trace: no graph.
            return None


def samples(info: OpInfo, dtype: torch.dtype) -> Iterator[Sample]:
    if dtype in info.supported_dtypes("cpu"):
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), SAMPLES_EACH):
            yield Sample(info, sample)


def is_comparable(captured: CapturedGraph) -> bool:
    names = [node.op for node in captured.graph.nodes]
    return not any(word in name for word in RANDOM for name in names)


def database() -> list[OpInfo]:
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 # seconds

    return op_db


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each operator, if slow tests may run: to read the database takes seconds."""
    is_left_out = "not slow" in metafunc.config.getoption("-m")
    names = set() if is_left_out else {info.name for info in database()}
    metafunc.parametrize("name", sorted(names - WITHOUT_VALUE_SEMANTICS))


@pytest.mark.filterwarnings("ignore")
def test_a_traced_operator_equals_eager(name: str) -> None:
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in (i for i in database() if i.name == name):
            for dtype in (*TOLERANCE, torch.int64, torch.uint8, torch.bool):
                for sample in samples(info, dtype):
                    compared += compare(sample)
    if not compared:
        pytest.skip("nothing that a client could send, or only random numbers")


def compare(sample: Sample) -> bool:
    captured = sample.captured()
    if captured is None or not is_comparable(captured):
        return False
    lowered = decompose_to_prims(captured.graph)
    results = run_lowered(captured, lowered, sample.tensors)
    for result, expected in zip(results, sample(*sample.tensors), strict=True):
        if isinstance(expected, torch.Tensor):
            bound = TOLERANCE.get(expected.dtype, 0)
            torch.testing.assert_close(
                torch.as_tensor(result), expected.detach(), rtol=bound, atol=bound, equal_nan=True
            )
    return True
