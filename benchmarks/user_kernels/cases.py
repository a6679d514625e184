"""The measured launches: a kernel for the subject of each of Triton's tutorials, and its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from tests.support.tutorial_kernels import (
    add_vectors,
    arc_sines,
    attention,
    described_matmul,
    dropout,
    grouped_matmul,
    layer_norm,
    matmul,
    persistent_matmul,
    softmax_rows,
)

_ELEMS = 1 << 25
_SIDE = 4096
_DROPPED = 0.25
_GROUPS = ((4096, 2048, 1024), (2048, 2048, 2048), (1024, 4096, 512), (1024, 1024, 4096))
"""Rows, columns and inner extents of the products of the grouped kernel."""

_Shape = tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """The arguments of a launch by parameter, and the tensor that it writes.

    `error_of(result)` is the largest difference from what PyTorch computes in f64, relative to its
    largest element. `memory` is what the launch reads beside its arguments.
    """

    arguments: Mapping[str, Any]
    result: torch.Tensor
    error_of: Callable[[torch.Tensor], float]
    memory: object = None


@dataclass(frozen=True)
class KernelCase:
    """A kernel, how it is launched, and the largest error that its result may have.

    `launch_on(device)` makes the arguments; on the device `meta` they have types alone.
    """

    name: str
    function: Any
    launch_on: Callable[[str], Launch]
    grid: tuple[int, ...]
    constants: Mapping[str, Any]
    tolerance: float
    options: Mapping[str, int] = field(default_factory=dict)


def all_cases() -> Iterator[KernelCase]:
    """Every case."""
    blocks = {"BM": 128, "BN": 128, "BK": 64}
    pipelined = {"num_warps": 8, "num_stages": 3}
    tiles = triton.cdiv(_SIDE, 128)
    each = (triton.cdiv(_ELEMS, 1024),)
    yield KernelCase("vector addition", add_vectors, _addition, each, {"BLOCK": 1024}, 1e-6)
    yield KernelCase(
        "softmax", softmax_rows, _softmax, (132 * 4,), {"BLOCK": 1024, "STAGES": 2}, 1e-5
    )
    yield KernelCase(
        "matmul",
        matmul.fn,
        _matmul,
        (tiles * tiles,),
        {**blocks, "GROUP": 8, "ACTIVATION": "leaky_relu"},
        1e-3,
        pipelined,
    )
    yield KernelCase("dropout", dropout, _dropout, each, {"BLOCK": 1024}, 1e-6)
    yield KernelCase("layer norm", layer_norm, _layer_norm, (8192,), {"BLOCK": 1024}, 1e-5)
    yield KernelCase(
        "causal attention",
        attention,
        _attention,
        (2048 // 128, 64),
        {"BM": 128, "BN": 64, "D": 64},
        3e-3,
        {"num_warps": 4, "num_stages": 3},
    )
    yield KernelCase("library functions", arc_sines, _arc_sines, each, {"BLOCK": 1024}, 1e-5)
    yield KernelCase(
        "grouped matmul",
        grouped_matmul,
        _grouped,
        (132,),
        {**blocks, "PROGRAMS": 132},
        1e-3,
        pipelined,
    )
    yield KernelCase(
        "persistent matmul",
        persistent_matmul,
        _persistent,
        (132,),
        {**blocks, "GROUP": 8, "PROGRAMS": 132},
        1e-3,
        pipelined,
    )
    yield KernelCase(
        "tensor descriptors", described_matmul, _described, (tiles, tiles), blocks, 1e-3, pipelined
    )


def _random(shape: _Shape, device: str, seed: int, dtype: torch.dtype) -> torch.Tensor:
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def _floats(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    return _random(shape, device, seed, torch.float32)


def _halves(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    return _random(shape, device, seed, torch.float16)


def _error(exact: Callable[[], torch.Tensor]) -> Callable[[torch.Tensor], float]:
    """The error of a result, relative to the largest element of the exact one."""

    def error_of(result: torch.Tensor) -> float:
        expected = exact()
        return float((result.double() - expected).abs().max() / expected.abs().max())

    return error_of


def _addition(device: str) -> Launch:
    x, y = (_floats(_ELEMS, device=device, seed=seed) for seed in range(2))
    out = torch.empty_like(x)
    arguments = {"x_ptr": x, "y_ptr": y, "out_ptr": out, "n": _ELEMS}
    return Launch(arguments, out, _error(lambda: x.double() + y.double()))


def _softmax(device: str) -> Launch:
    rows, columns = 16384, 1000
    x = _floats(rows, columns, device=device)
    out = torch.empty_like(x)
    sizes = {"in_stride": columns, "out_stride": columns, "rows": rows, "columns": columns}
    arguments = {"out_ptr": out, "in_ptr": x, **sizes}
    return Launch(arguments, out, _error(lambda: x.double().softmax(-1)))


def _factors(device: str) -> dict[str, Any]:
    sides = {"m": _SIDE, "n": _SIDE, "k": _SIDE}
    a, b = (_halves(_SIDE, _SIDE, device=device, seed=seed) for seed in range(2))
    return {"a_ptr": a, "b_ptr": b, "c_ptr": torch.empty_like(a), **sides}


def _matmul(device: str) -> Launch:
    arguments = _factors(device)
    a, b, c = (arguments[f"{name}_ptr"] for name in "abc")
    for number, (name, along) in enumerate((("am", a), ("bk", b), ("cm", c))):
        last = ("ak", "bn", "cn")[number]
        arguments |= {f"stride_{name}": along.stride(0), f"stride_{last}": along.stride(1)}
    relu = torch.nn.functional.leaky_relu
    return Launch(arguments, c, _error(lambda: relu(a.double() @ b.double())))


def _persistent(device: str) -> Launch:
    arguments = _factors(device)
    a, b, c = (arguments[f"{name}_ptr"] for name in "abc")
    return Launch(arguments, c, _error(lambda: a.double() @ b.double()))


def _described(device: str) -> Launch:
    arguments = _factors(device)
    a, b, c = (arguments[f"{name}_ptr"] for name in "abc")
    return Launch(arguments, c, _error(lambda: a.double() @ b.double().t()))


def _dropout(device: str) -> Launch:
    x = _floats(_ELEMS, device=device)
    out = torch.empty_like(x)

    def error_of(result: torch.Tensor) -> float:
        is_kept = result != 0
        if abs(is_kept.double().mean().item() - (1 - _DROPPED)) > 1e-3:
            return math.inf  # not the stated share of elements
        expected = torch.where(is_kept, x.double() / (1 - _DROPPED), 0)
        return float((result.double() - expected).abs().max() / expected.abs().max())

    arguments = {"x_ptr": x, "out_ptr": out, "n": _ELEMS, "p": _DROPPED, "seed": 123}
    return Launch(arguments, out, error_of)


def _layer_norm(device: str) -> Launch:
    rows, columns = 8192, 4096
    x, out = _floats(rows, columns, device=device), torch.empty(rows, columns, device=device)
    w, b = (_floats(columns, device=device, seed=seed) for seed in (1, 2))
    mean, rstd = (torch.empty(rows, device=device) for _ in range(2))
    arguments = {"x_ptr": x, "y_ptr": out, "w_ptr": w, "b_ptr": b, "mean_ptr": mean}
    arguments |= {"rstd_ptr": rstd, "stride": columns, "n": columns, "eps": 1e-5}

    def exact() -> torch.Tensor:
        of_double = (x.double(), (columns,), w.double(), b.double(), 1e-5)
        return torch.nn.functional.layer_norm(*of_double)

    return Launch(arguments, out, _error(exact))


def _attention(device: str) -> Launch:
    heads, rows, depth = 64, 2048, 64
    q, k, v = (_halves(heads, rows, depth, device=device, seed=seed) for seed in range(3))
    out, lse = torch.empty_like(q), torch.empty(heads, rows, device=device)
    arguments = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "out_ptr": out, "lse_ptr": lse}
    arguments |= {"stride_h": q.stride(0), "stride_n": q.stride(1), "n": rows}

    def exact() -> torch.Tensor:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q.double(), k.double(), v.double(), is_causal=True)

    return Launch({**arguments, "scale": depth**-0.5}, out, _error(exact))


def _arc_sines(device: str) -> Launch:
    x = _floats(_ELEMS, device=device).tanh()
    out = torch.empty_like(x)
    arguments = {"x_ptr": x, "out_ptr": out, "n": _ELEMS}
    return Launch(arguments, out, _error(lambda: x.double().asin()))


def _grouped(device: str) -> Launch:
    pairs = [
        (_halves(m, k, device=device, seed=2 * i), _halves(k, n, device=device, seed=2 * i + 1))
        for i, (m, n, k) in enumerate(_GROUPS)
    ]
    out = torch.empty(sum(m * n for m, n, _ in _GROUPS), dtype=torch.float16, device=device)
    products = torch.split(out, [m * n for m, n, _ in _GROUPS])

    def addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=device)

    def numbers(rows: list[_Shape]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=device)

    arguments = {
        "a_ptrs": addresses([a for a, _ in pairs]),
        "b_ptrs": addresses([b for _, b in pairs]),
        "c_ptrs": addresses(list(products)),
        "sizes_ptr": numbers(list(_GROUPS)),
        "strides_ptr": numbers([(k, n, n) for _, n, k in _GROUPS]),
        "groups": len(_GROUPS),
    }

    def exact() -> torch.Tensor:
        return torch.cat([(a.double() @ b.double()).flatten() for a, b in pairs])

    return Launch(arguments, out, _error(exact), memory=pairs)
