"""Users' Triton kernels for Ascend: the tutorials compile, and their Linalg computes the numbers.

The Linalg text runs on this CPU. This verifies source and adapter, not code for an Ascend chip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codegen_svc.backends.ascend.backend import BACKEND
from codegen_svc.backends.ascend.kernel_object import BINARY_STAGE
from codegen_svc.backends.contract import built_variants
from codegen_svc.worker.build_kernel import checked_result
from kernelfarm.digest import kernel_key
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.interpret import numpy_dtype
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, Scalar, UserKernel
from kernelfarm.targets import target_facts
from tests.support.linalg_cpu import TOOLS, run_user_linalg
from tests.support.third_party import need
from tests.support.tutorial_kernels import TUTORIALS

pytestmark = pytest.mark.usefixtures("adapter")

Array = np.ndarray[Any, Any]

TARGET = "ascend:910b"
CORES = {
    "add": "vector",
    "softmax": "vector",
    "matmul": "cube and vector",
    "dropout": "vector",
    "layer norm": "vector",
    "attention": "cube and vector",
    "grouped matmul": "cube and vector",
    "persistent matmul": "cube and vector",
    "tensor descriptors": "cube and vector",
}


def _built(kernel: UserKernel) -> BuiltKernel:
    (built,) = built_variants(BACKEND, kernel, target_facts(TARGET))
    return built


def _with(kernel: UserKernel, **constants: int) -> UserKernel:
    params = tuple(
        FixedParam(p.name, constants[p.name]) if p.name in constants else p for p in kernel.params
    )
    return replace(kernel, params=params)


@pytest.mark.parametrize("name", CORES)
def test_a_tutorial_compiles_with_all_stages(name: str) -> None:
    kernel, facts = TUTORIALS[name].kernel(), target_facts(TARGET)
    built = _built(kernel)

    checked_result(BACKEND, kernel, facts, kernel_key(kernel, TARGET), (built,), 0.0)
    stages = [stage.name for stage in built.stages]
    assert stages == ["user_kernel", "triton", "ttir", "linalg", BINARY_STAGE]
    assert f'"cores": "{CORES[name]}"' in dict(built.launch.extras)["tiling"]
    assert built.launch.symbol == kernel.name
    assert built.launch.arguments.count("buffer") == len(kernel.pointers)
    assert built.launch.arguments.count("size") == len(kernel.scalars)
    first = len(kernel.scalars)
    assert [str(extent) for extent in built.launch.grid] == [f"s{first + n}" for n in range(3)]
    assert not built.guard


def test_other_functions_of_nvidias_library_are_refused_with_the_reason() -> None:
    expected = r"leaves tt\.extern_elementwise of kernel arc_sines_.*no form of it for Ascend"
    with pytest.raises(KernelRejectedError, match=expected):
        _built(TUTORIALS["library functions"].kernel())


def test_a_kernel_that_triton_refuses_is_an_error_with_tritons_words() -> None:
    with pytest.raises(
        KernelRejectedError, match=r"triton .* refuses kernel .* for ascend[\s\S]*power of 2"
    ):
        _built(_with(TUTORIALS["add"].kernel(), BLOCK=1000))


def test_products_in_tf32_are_refused_and_others_are_ieee() -> None:
    plain = TUTORIALS["persistent matmul"].kernel()
    text = plain.source.replace(
        "tl.dot(a, b, total)", "tl.dot(a, b, total, input_precision='tf32')"
    )
    with pytest.raises(KernelRejectedError, match=r"input_precision must be one of[\s\S]*ieee"):
        _built(replace(plain, source=text))
    linalg = next(s.content for s in _built(plain).stages if s.name == "linalg")
    assert linalg.count(b'input_precison = "ieee"') == linalg.count(b"linalg.matmul") == 1


def test_a_name_that_the_runtime_does_not_take_is_refused() -> None:
    kernel = replace(TUTORIALS["add"].kernel(), name="k" * 50)
    with pytest.raises(KernelRejectedError, match=r"50 characters.*at most 49"):
        _built(kernel)


def test_options_of_gpus_are_ignored_and_noted() -> None:
    built = _built(TUTORIALS["softmax"].kernel())
    assert built.notes == ("option num_warps does not exist for ascend",)


_random = np.random.default_rng(7)


def _floats(*shape: int, dtype: str = "float32") -> Array:
    return _random.standard_normal(shape).astype(dtype)


def _halves(*shape: int) -> Array:
    return _floats(*shape, dtype="float16")


@dataclass(frozen=True, slots=True)
class Run:
    """A launch: arguments in order, and arrays with what they hold afterwards.

    The tolerance is relative to the largest element: sums have another order than NumPy's, and
    16-bit results are rounded once. `reached` are arrays that the kernel finds by their addresses.
    """

    arguments: tuple[Array | float, ...]
    grid: tuple[int, int, int]
    expected: tuple[tuple[Array, Array], ...]
    tolerance: float = 2e-6
    reached: tuple[Array, ...] = ()


def _add() -> Run:
    x, y, out = (_floats(2500) for _ in range(3))
    # The last program has a tail.
    return Run((x, y, out, 2500), (3, 1, 1), ((out, x + y),))


def _softmax() -> Run:
    x, out = _floats(7, 800), np.zeros((7, 800), dtype=np.float32)
    wide = x[:, :781].astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    expected = np.zeros((7, 800))
    expected[:, :781] = powers / powers.sum(1, keepdims=True)
    return Run((out, x, 800, 800, 7, 781), (3, 1, 1), ((out, expected),))


def _layer_norm() -> Run:
    x, y = _floats(3, 1600), np.zeros((3, 1600), dtype=np.float32)
    w, b, mean, rstd = _floats(1600), _floats(1600), _floats(3), _floats(3)
    wide = x[:, :1590].astype(np.float64)
    means, rstds = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    expected = np.zeros((3, 1600))
    expected[:, :1590] = (wide - means[:, None]) * rstds[:, None] * w[:1590] + b[:1590]
    arguments = (x, y, w, b, mean, rstd, 1600, 1590, 1e-5)
    return Run(arguments, (3, 1, 1), ((y, expected), (mean, means), (rstd, rstds)))


def _philox(seed: int, offsets: Array) -> Array:
    """The first word of Philox 4x32-10, as `tl.rand` draws it for each offset."""
    mask, k0, k1 = np.uint64(0xFFFFFFFF), np.uint64(seed), np.uint64(0)
    c = [offsets.astype(np.uint64), *(np.zeros(len(offsets), dtype=np.uint64) for _ in range(3))]
    for _ in range(10):
        low, high = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (high >> np.uint64(32)) ^ c[1] ^ k0,
            high & mask,
            (low >> np.uint64(32)) ^ c[3] ^ k1,
            low & mask,
        ]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return c[0]


def _dropout() -> Run:
    x, out = _floats(2000), _floats(2000)
    bits = _philox(123, np.arange(2000)).astype(np.uint32).view(np.int32)
    # Salmon et al.; the factor is Triton's (`uint_to_uniform_float`).
    uniform = np.where(bits < 0, -bits - 1, bits).astype(np.float32) * np.float32(4.6566127342e-10)
    kept = np.where(uniform > np.float32(0.25), x / np.float32(0.75), 0)
    return Run((x, out, 2000, 0.25, 123), (2, 1, 1), ((out, kept),))


def _matmul() -> Run:
    a, b, c = _halves(150, 70), _halves(70, 130), _halves(150, 130)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    expected = np.where(exact >= 0, exact, 0.01 * exact)
    return Run((a, b, c, 150, 130, 70, 70, 130, 130), (4, 1, 1), ((c, expected),), 1e-3)


def _persistent_matmul() -> Run:
    a, b, c = _halves(150, 70), _halves(70, 130), _halves(150, 130)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    return Run((a, b, c, 150, 130, 70), (132, 1, 1), ((c, expected),), 1e-3)


def _attention() -> Run:
    q, k, v = (_halves(2, 128, 64) for _ in range(3))
    wide_q, wide_k, wide_v = (torch.from_numpy(operand).double() for operand in (q, k, v))
    later = torch.ones(128, 128, dtype=torch.bool).triu(1)
    scores = (wide_q @ wide_k.mT * 64**-0.5).masked_fill(later, -torch.inf)
    expected, sums = scores.softmax(-1) @ wide_v, scores.logsumexp(-1) / np.log(2)
    out, lse = _halves(2, 128, 64), _floats(2, 128)
    results = ((out, expected.numpy()), (lse, sums.numpy()))
    # The kernel rounds probabilities to f16.
    return Run((q, k, v, out, lse, 128 * 64, 64, 128, 64**-0.5), (2, 2, 1), results, 2e-3)


_SHAPES = ((64, 128, 32), (128, 64, 96))


def _grouped_matmul() -> Run:
    left = [_halves(m, k) for m, _, k in _SHAPES]
    right = [_halves(k, n) for _, n, k in _SHAPES]
    made = [_halves(m, n) for m, n, _ in _SHAPES]
    pointers = [np.array([a.ctypes.data for a in group]) for group in (left, right, made)]
    sizes = np.array(_SHAPES, dtype=np.int32)
    strides = np.array([(k, n, n) for _, n, k in _SHAPES], dtype=np.int32)
    exact = (a.astype(float) @ b.astype(float) for a, b in zip(left, right, strict=True))
    results = tuple(zip(made, exact, strict=True))
    return Run((*pointers, sizes, strides, 2), (84, 1, 1), results, 1e-3, (*left, *right))


def _described() -> Run:
    a, b, c = _halves(128, 128), _halves(64, 128), _halves(128, 64)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    return Run((a, b, c, 128, 64, 128), (2, 1, 1), ((c, expected),), 1e-3)


RUNS: dict[str, Callable[[], Run]] = {
    "add": _add,
    "softmax": _softmax,
    "layer norm": _layer_norm,
    "dropout": _dropout,
    "matmul": _matmul,
    "persistent matmul": _persistent_matmul,
    "attention": _attention,
    "grouped matmul": _grouped_matmul,
    "tensor descriptors": _described,
}


_UNSIGNED = """def unsigned(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    tl.store(out_ptr + at, a // b)
    tl.store(out_ptr + BLOCK + at, a % b)
    tl.store(out_ptr + 2 * BLOCK + at, a >> 3)
    tl.store(out_ptr + 3 * BLOCK + at, tl.maximum(a, b))
    tl.store(out_ptr + 4 * BLOCK + at, (a < b).to(tl.uint32) + tl.min(a, axis=0))
    is_loaded = at.to(tl.uint32) * 3 < n
    tl.store(out_ptr + 5 * BLOCK + at, tl.load(a_ptr + at, mask=is_loaded, other=7))
"""


@pytest.mark.third_party
def test_numbers_without_a_sign_stay_so(tmp_path: Path) -> None:
    need(*TOOLS)
    names = ("a_ptr", "b_ptr", "out_ptr")
    pointers = tuple(Pointer(name, DType.U32) for name in names)
    params = (*pointers, Scalar("n", DType.I32), FixedParam("BLOCK", 64))
    kernel = UserKernel("unsigned", _UNSIGNED, "unsigned", params)
    a, b = (_random.integers(1, 1 << 32, 64, dtype=np.uint32) for _ in range(2))
    assert (a >> 31).any() and (b >> 31).any()
    out = np.zeros(6 * 64, dtype=np.uint32)
    run_user_linalg(_built(kernel), kernel, (a, b, out, 100), (1, 1, 1), tmp_path)
    loaded = np.where(np.arange(64) * 3 < 100, a, 7)
    expected = (a // b, a % b, a >> 3, np.maximum(a, b), (a < b) + a.min(), loaded)
    np.testing.assert_array_equal(out, np.concatenate(expected))


_FUNCTIONS = """def functions(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    tl.debug_barrier()
    scale = libdevice.rsqrt(tl.sum(a * a, axis=0))
    tl.store(out_ptr + at, libdevice.tanh(b) * scale + libdevice.pow(libdevice.abs(a), b))
"""


@pytest.mark.third_party
def test_functions_of_nvidias_library_that_ascend_has_are_called(tmp_path: Path) -> None:
    need(*TOOLS)
    names = ("a_ptr", "b_ptr", "out_ptr")
    params = (*(Pointer(name, DType.F32) for name in names), FixedParam("BLOCK", 64))
    kernel = UserKernel("functions", _FUNCTIONS, "functions", params)
    built = _built(kernel)
    a, b, out = (_floats(64) for _ in range(3))
    run_user_linalg(built, kernel, (a, b, out), (1, 1, 1), tmp_path)

    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    scale = 1 / np.sqrt((wide_a * wide_a).sum())
    expected = np.tanh(wide_b) * scale + np.abs(wide_a) ** wide_b
    np.testing.assert_allclose(out, expected, rtol=4e-6)
    assert built.notes == tuple(
        f"calls __hmf_{name} of CANN's library, which was not run here"
        for name in ("powf", "tanhf")
    )


# slow: the largest ones; MLIR's tools and clang take seconds for each.
SLOW = ("persistent matmul", "tensor descriptors")


_HIGH_WORDS = """def high_words(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    tl.store(out_ptr + at, tl.umulhi(a, b) + tl.umulhi(tl.load(a_ptr), tl.load(b_ptr)))
"""


@pytest.mark.third_party
@pytest.mark.parametrize(("dtype", "bits"), [(DType.U32, 32), (DType.U64, 64)])
def test_high_words_of_products_are_those_of_unsigned_numbers(
    dtype: DType, bits: int, tmp_path: Path
) -> None:
    # Triton-Ascend 3.2.0 multiplies as if the operands were signed; random numbers are wrong then.
    need(*TOOLS)
    names = ("a_ptr", "b_ptr", "out_ptr")
    params = (*(Pointer(name, dtype) for name in names), FixedParam("BLOCK", 16))
    kernel = UserKernel("high_words", _HIGH_WORDS, "high_words", params)
    words = [0, 1, 3 << (bits - 2), (1 << bits) - 1]
    pairs = [(a, b) for a in reversed(words) for b in reversed(words)]
    kind = numpy_dtype(dtype)
    a, b = (np.array(column, dtype=kind) for column in zip(*pairs, strict=True))
    out = np.zeros(16, dtype=kind)
    run_user_linalg(_built(kernel), kernel, (a, b, out), (1, 1, 1), tmp_path)
    high = [x * y >> bits for x, y in pairs]
    assert out.tolist() == [(word + high[0]) % (1 << bits) for word in high]


@pytest.mark.sweep
@pytest.mark.third_party
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in RUNS]
)
def test_the_linalg_of_a_tutorial_computes_what_numpy_does(name: str, tmp_path: Path) -> None:
    need(*TOOLS)
    kernel, run = TUTORIALS[name].kernel(), RUNS[name]()
    run_user_linalg(_built(kernel), kernel, run.arguments, run.grid, tmp_path)
    for got, expected in run.expected:
        error = np.abs(got.astype(np.float64) - expected).max()
        assert error <= run.tolerance * np.abs(expected).max(), name
