"""Sample calls of special functions, vector products and rearrangements."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.support.operator_samples.functions import function_calls
from tests.support.single_operator import Call

INF, NAN = float("inf"), float("nan")


def special_calls() -> Iterator[Call]:
    """At least one call for each operator of these families."""
    yield from _functions()
    yield from function_calls()
    yield from _bessel()
    yield from _products()
    yield from _rearranged()
    yield from _distances()
    yield from _spaced()


def _normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def _functions() -> Iterator[Call]:
    edge = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.25, 1e-30, 3e38])
    other = torch.tensor([1.0, INF, -INF, 0.0, NAN, -0.5, INF, 2.0, 1e-30, 3e38])
    for name in ("deg2rad", "rad2deg", "sinc", "angle", "special_entr"):
        finite = edge[3:8] if name == "sinc" else edge
        for x in (_normal(3, 4), finite, _normal(5, dtype=torch.int64)):
            yield Call(f"aten.{name}.default", [x])
        yield Call(f"aten.{name}.default", [_normal(7, dtype=torch.bfloat16)])
    for name in ("hypot", "logaddexp2"):
        yield Call(f"aten.{name}.default", [_normal(3, 4), _normal(4, seed=1)])
        yield Call(f"aten.{name}.default", [edge, other])
        yield Call(f"aten.{name}.default", [_normal(9, dtype=torch.float16), _normal(9).half()])
    for x in (_normal(3, 4), _normal(3, 4, dtype=torch.int64)):
        yield Call("aten.ldexp.Tensor", [x, _normal(4, dtype=torch.int32)])
    yield Call("aten.special_xlog1py.default", [_normal(3, 4), _normal(4).abs()])
    yield Call("aten.special_xlog1py.default", [edge, other])
    yield Call("aten.special_xlog1py.other_scalar", [_normal(3), 0.5])


def _bessel() -> Iterator[Call]:
    x = torch.cat(
        [_normal(40) * 3, torch.linspace(-40, 40, 41), torch.tensor([0.0, 2.0, 8.0, NAN])]
    )
    above = torch.cat([x.abs(), torch.tensor([-1.0, 1e-20, INF])])
    names = "i0 special_i0e special_i1 special_i1e special_modified_bessel_i0"
    for name in [*names.split(), "special_modified_bessel_i1"]:
        for dtype in (torch.float32, torch.float64):
            yield Call(f"aten.{name}.default", [x.to(dtype)])
        yield Call(f"aten.{name}.default", [_normal(5, dtype=torch.int64)])
    for name in ("modified_bessel_k", "scaled_modified_bessel_k"):
        for order in (0, 1):
            for dtype in (torch.float32, torch.float64):
                yield Call(f"aten.special_{name}{order}.default", [above.to(dtype)])


def _products() -> Iterator[Call]:
    for name in ("dot", "vdot"):
        yield Call(f"aten.{name}.default", [_normal(9), _normal(9, seed=1)])
        yield Call(f"aten.{name}.default", [_normal(9, dtype=torch.int16)] * 2)
        yield Call(f"aten.{name}.default", [torch.zeros(0), torch.zeros(0)])
    yield Call("aten.addr.default", [_normal(3, 4), _normal(3), _normal(4)])
    yield Call("aten.addr.default", [_normal(4), _normal(3), _normal(4)], {"beta": 2, "alpha": 3})
    yield Call("aten.addr.default", [torch.full((3, 4), NAN), _normal(3), _normal(4)], {"beta": 0})
    truths = [torch.eye(3, 4) > 0, _normal(3) > 0, _normal(4) > 0]
    for beta, alpha in ((True, True), (False, True), (True, False), (False, False)):
        yield Call("aten.addr.default", truths, {"beta": beta, "alpha": alpha})
    yield Call("aten.linalg_cross.default", [_normal(5, 3), _normal(5, 3, seed=1)])
    yield Call("aten.linalg_cross.default", [_normal(3, 4), _normal(3, 1)], {"dim": 0})
    for norm in (2, 0, 1, INF, 3.5):
        yield Call("aten.dist.default", [_normal(3, 4), _normal(4), norm])


def _rearranged() -> Iterator[Call]:
    x = _normal(3, 4, 5)
    for args in ([], [-1], [2, [1, 2]], [3, [2, 0]], [4]):
        yield Call("aten.rot90.default", [x, *args])
    yield Call("aten.channel_shuffle.default", [_normal(2, 6, 3, 2), 3])
    yield Call("aten.zero.default", [x])
    yield Call("aten.slice_scatter.default", [x, _normal(3, 4, 2), 2, 0, 5, 3])
    yield Call("aten.slice_scatter.default", [x, _normal(3, 2, 5, seed=1), 1, 1, -1, 1])
    yield Call("aten.slice_scatter.default", [x, _normal(2, 4, 5).long(), 0, 0, None, 2])
    yield Call("aten.roll.default", [x, [7]])
    yield Call("aten.narrow_copy.default", [x, 1, 1, 2])
    for name in ("alias_copy", "detach_copy", "squeeze_copy"):
        yield Call(f"aten.{name}.default", [_normal(3, 1, 5)])
    yield Call("aten.squeeze_copy.dims", [_normal(3, 1, 5), [0, 1]])
    some = torch.tensor([[1.0, NAN, 2.0], [NAN, NAN, NAN]])
    yield Call("aten.nansum.default", [some])
    yield Call("aten.nansum.default", [some, [1], True])
    yield Call("aten.nansum.default", [some.half(), [0]], {"dtype": torch.float64})
    yield Call("aten.nansum.default", [_normal(3, 4, dtype=torch.int32)])
    rows, columns = torch.tensor([[0], [9]]), torch.tensor([0, -7, 2])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    yield Call("aten._unsafe_masked_index.default", [x[0], mask, [rows, columns], 2.5])


def _distances() -> Iterator[Call]:
    for p in (2.0, 1.0, 0.0, INF, 1.5):
        yield Call("aten._cdist_forward.default", [_normal(2, 3, 4), _normal(2, 5, 4), p, None])
    yield Call("aten._euclidean_dist.default", [_normal(3, 4), _normal(5, 4)])
    yield Call("aten.renorm.default", [_normal(3, 4, 2) * 3, 2, 0, 4.0])
    yield Call("aten.renorm.default", [_normal(3, 4, 2), 1, -1, 4.0])


def _spaced() -> Iterator[Call]:
    first, last = torch.tensor(-1.5), torch.tensor(3)
    ends = {
        "default": (-1.5, 3),
        "Tensor_Tensor": (first, last),
        "Tensor_Scalar": (first, 3),
        "Scalar_Tensor": (-1.5, last),
    }
    for name in ("linspace", "logspace"):
        for overload, (low, high) in ends.items():
            for steps in (7, 1, 0, 2):
                yield Call(f"aten.{name}.{overload}", [low, high, steps])
            for dtype in (torch.bfloat16, torch.int64, torch.int32, torch.int8):
                yield Call(f"aten.{name}.{overload}", [low, high, 12], {"dtype": dtype})
        for steps in (1, 5, 8):
            yield Call(f"aten.{name}.default", [9.7, 0.2, steps], {"dtype": torch.int64})
    yield Call("aten.logspace.default", [0, 5, 6, 2.5], {"dtype": torch.int64})
