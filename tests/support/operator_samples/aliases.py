"""Sample calls of operators that are aliases of others, and of windows of signals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.support.operator_samples.tensors import FLOATS, INTS, NAN, index, normal, positive
from tests.support.single_operator import Call


def kin_calls() -> Iterator[Call]:
    """At least one call for each operator in the families."""
    for group in (_views, _numbers, _reductions, _creation, _signals, _weights):
        yield from group()


def _views() -> Iterator[Call]:
    x = normal(4, 6)
    yield Call("aten.lift.default", [x])
    yield Call("aten._reshape_copy.default", [x, [3, -1]])
    yield Call("aten._reshape_alias_copy.default", [x, [3, 8], [8, 1]])
    yield Call("aten._stack.default", [[x, x + 1], 1])
    yield Call("aten.split_copy.Tensor", [x, 4, 1])
    positions = [index(3, below=4), index(3, below=6)]
    yield Call("aten._index_put_impl.default", [x, positions, normal(3), True])
    yield Call("aten._index_put_impl.default", [x, [x > 0], torch.tensor(2.0)])


def _numbers() -> Iterator[Call]:
    for name in ("and", "or", "xor", "left_shift", "right_shift"):
        for dtype in INTS:
            yield Call(f"aten.bitwise_{name}.Scalar_Tensor", [5, normal(6, dtype=dtype) % 4])
    y = torch.tensor([0.5, 2.0, NAN, 0.0, 1.0])
    for number in (0.0, 1.5, 2):
        yield Call("aten.xlogy.Scalar_Self", [number, y])
        yield Call("aten.special_xlog1py.self_scalar", [number, y])
        yield Call("aten.xlogy.Scalar_Self", [number, normal(4, dtype=INTS[0])])

    yield Call("aten._add_relu.Tensor", [normal(4, 5), normal(5)], {"alpha": 2})
    yield Call("aten._add_relu.Scalar", [normal(4, 5), 0.5, 2])


def _reductions() -> Iterator[Call]:
    x = normal(4, 5)
    yield Call("aten._aminmax.default", [x])
    yield Call("aten._aminmax.dim", [x, 1, True])
    yield Call("aten._logcumsumexp.default", [x, 1])
    for name in ("_is_any_true", "_is_all_true"):
        for truth in (x > 0, x > 9, x > -9):
            yield Call(f"aten.{name}.default", [truth])
    wide = {"dtype": torch.float64}
    for order in (0, 1, 2, 3.5):
        yield Call("aten.linalg__powsum.default", [x, order])
        yield Call("aten.linalg__powsum.default", [x, order, [1], True], wide)
        yield Call("aten.norm.ScalarOpt_dtype", [x, order], wide)
        yield Call("aten.norm.ScalarOpt_dim_dtype", [x, order, [1], False], wide)


def _creation() -> Iterator[Call]:
    for ends in ([0, 5], [1.5, 4.0], [2, 2]):
        yield Call("aten.range.default", ends)
    for ends in ([0, 5, 2], [5, 0, -1.5], [0.0, 1.0, 0.25]):
        yield Call("aten.range.step", ends)
    yield Call("aten.range.step", [0, 9, 3], {"dtype": torch.int64})


def _signals() -> Iterator[Call]:
    for name in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        for length, periodic in itertools.product((0, 1, 2, 7, 32), (False, True)):
            yield Call(f"aten.{name}_window.periodic", [length, periodic])
        for dtype in FLOATS:
            yield Call(f"aten.{name}_window.default", [9], {"dtype": dtype})
    yield Call("aten.hamming_window.periodic_alpha", [9, True, 0.6])
    yield Call("aten.hamming_window.periodic_alpha_beta", [9, False, 0.6, 0.3])
    yield Call("aten.kaiser_window.beta", [9, False, 3.5])
    for count in (1, 2, 7, 8):
        yield Call("aten.fft_fftfreq.default", [count, 0.5])
        yield Call("aten.fft_rfftfreq.default", [count])


def _weights() -> Iterator[Call]:
    op = "aten._weight_norm_interface.default"
    for dtype, dim in itertools.product(FLOATS[:2], (0, 2)):
        v = normal(4, 3, 5).to(dtype)
        g = positive(4, 1, 1).to(dtype) if dim == 0 else positive(1, 1, 5).to(dtype)
        yield Call(op, [v, g, dim])
        norms = v.norm(dim=[1, 2] if dim == 0 else [0, 1], keepdim=True)
        rest = [normal(4, 3, 5, seed=1).to(dtype), v, g, norms, dim]
        yield Call("aten._weight_norm_interface_backward.default", rest)
