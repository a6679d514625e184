"""Kernels as messages: exact round trips, and incomplete messages."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelfarm.errors import CallerError, MalformedMessageError, UnsupportedDTypeError
from kernelfarm.internal.v1 import loops_pb2 as pb
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from kernelfarm.wire import kernel_from_proto, kernel_to_proto
from tests.support.ir_strategies import GOLDEN, KERNEL_FILES


def embedding() -> Kernel:
    return parse_kernel((GOLDEN / "embedding.kernel").read_text())


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.name)
def test_golden_kernels_return_equal(path: Path) -> None:
    kernel = parse_kernel(path.read_text())
    data = kernel_to_proto(kernel).SerializeToString()
    # Texts are compared, since NaN literals differ from themselves.
    assert print_kernel(kernel_from_proto(pb.Kernel.FromString(data))) == path.read_text()


def test_hints_of_sizes_are_not_sent() -> None:
    kernel = embedding()
    hinted = replace(kernel, sizes=tuple(replace(size, hint=3) for size in kernel.sizes))
    assert kernel_from_proto(kernel_to_proto(hinted)).sizes == kernel.sizes


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda k: k.body.append(pb.Statement()), MalformedMessageError, "statement 16: its form"),
        (lambda k: setattr(k.params[0], "access", 9), MalformedMessageError, "access number 9"),
        (
            lambda k: setattr(k.params[0], "dtype", 99),
            UnsupportedDTypeError,
            "parameter ids: dtype",
        ),
        (lambda k: k.body[7].load.ClearField("other"), MalformedMessageError, "expected both"),
        (lambda k: k.body[6].literal.ClearField("value"), MalformedMessageError, "expected real"),
        (
            lambda k: setattr(k.body[6].literal, "integer", 1),
            MalformedMessageError,
            "integer is set; expected real",
        ),
        (lambda k: k.outer[0].ClearField("extent"), MalformedMessageError, "axis row: an expr"),
        (lambda k: k.body[0].load.ClearField("index"), MalformedMessageError, "statement 0: an"),
    ],
)
def test_an_incomplete_kernel_is_refused(
    damage: Callable[[pb.Kernel], object], error: type[CallerError], message: str
) -> None:
    kernel = kernel_to_proto(embedding())
    damage(kernel)
    with pytest.raises(error, match=message):
        kernel_from_proto(kernel)
