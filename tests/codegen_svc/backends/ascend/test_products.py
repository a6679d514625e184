"""Products on cube cores: the Linalg text, its numbers on this CPU, and what the stub states."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from codegen_svc.backends.ascend.backend import BACKEND
from codegen_svc.backends.ascend.bishengir import find_bishengir
from codegen_svc.backends.ascend.kernel_object import BINARY_STAGE
from kernelfarm.dtypes import DType
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import CubeFacts, LocalBufferFacts
from tests.support.ascend_products import TARGET, built_of, interpreted_case, tiling_of
from tests.support.goldens import assert_golden_file
from tests.support.linalg_cpu import TOOLS, linalg_of, run_linalg
from tests.support.product_kernels import (
    batched,
    biased_gelu,
    gated,
    gradient,
    linear,
    padded,
    scaled,
    vector,
    wide,
    with_residuals,
)
from tests.support.third_party import need
from tests.support.triton_cases import Array, random_buffers
from tests.support.triton_interpreter import run_interpreted

pytestmark = pytest.mark.usefixtures("adapter")

CUBE = TARGET.section(CubeFacts)

ROUNDING = {DType.BF16: 2.0**-8, DType.F16: 2.0**-11, DType.F32: 2.0**-23}
"""A rounding to the type, as a part of the value."""
Exact = Callable[[dict[str, Array]], tuple[Array, Array]]
"""The result of a kernel in float64, and the sums of its terms' magnitudes."""


def wide_of(buffers: dict[str, Array], name: str, *shape: int) -> Array:
    return buffers[name].astype(np.float64).reshape(shape)


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(erf)(x * 0.7071067811865476))


def plain(m: int, n: int, k: int) -> Exact:
    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        x, weight = wide_of(buffers, "in0", m, k), wide_of(buffers, "in1", n, k)
        return x @ weight.T, np.abs(x) @ np.abs(weight).T

    return exact


def turned(m: int, n: int, k: int) -> Exact:
    """GELU of the product by a weight (k, n) and a bias, plus a residual."""

    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        x, weight = wide_of(buffers, "in0", m, k), wide_of(buffers, "in1", k, n)
        total = x @ weight + wide_of(buffers, "in2", 1, n)
        size = np.abs(x) @ np.abs(weight) + np.abs(buffers["in2"]).max()
        return gelu(total) + wide_of(buffers, "in3", m, n), size

    return exact


def with_bias(m: int, n: int, k: int) -> Exact:
    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        total, size = plain(m, n, k)(buffers)
        return gelu(total + wide_of(buffers, "in2", 1, n)), size

    return exact


def added(m: int, n: int, k: int, count: int) -> Exact:
    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        total, size = plain(m, n, k)(buffers)
        others = sum(wide_of(buffers, f"in{number + 2}", m, n) for number in range(count))
        return total + others, size

    return exact


def silu_of(m: int, n: int, k: int) -> Exact:
    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        x = wide_of(buffers, "in0", m, k)
        gate, up = (x @ wide_of(buffers, name, n, k).T for name in ("in1", "in2"))
        size = np.abs(x) @ np.abs(wide_of(buffers, "in1", n, k)).T
        return gate / (1 + np.exp(-gate)) * up, size * (1 + np.abs(up))

    return exact


def of_batches(batches: int, m: int, n: int, k: int) -> Exact:
    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        x, weight = wide_of(buffers, "in0", batches, m, k), wide_of(buffers, "in1", batches, n, k)
        turned_weight = weight.transpose(0, 2, 1)
        return x @ turned_weight, np.abs(x) @ np.abs(turned_weight)

    return exact


def of_turned_rows(m: int, n: int, k: int) -> Exact:
    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        x, weight = wide_of(buffers, "in0", k, m), wide_of(buffers, "in1", k, n)
        return x.T @ weight, np.abs(x).T @ np.abs(weight)

    return exact


def of_padded_rows(m: int, n: int, k: int, inside: int) -> Exact:
    def exact(buffers: dict[str, Array]) -> tuple[Array, Array]:
        is_outside = np.arange(m)[:, None] + np.arange(k) >= inside
        x = np.where(is_outside, 0.5, wide_of(buffers, "in0", m, k))
        weight = wide_of(buffers, "in1", n, k)
        return x @ weight.T, np.abs(x) @ np.abs(weight).T

    return exact


CASES = [
    (linear(100, 70, 130, "f16"), plain(100, 70, 130)),
    (linear(1, 70, 130), plain(1, 70, 130)),
    (linear(64, 64, 64, "f16"), plain(64, 64, 64)),
    (linear(300, 520, 600), plain(300, 520, 600)),  # several tiles for each program
    (biased_gelu(100, 70, 130, "f16"), with_bias(100, 70, 130)),
    (biased_gelu(33, 257, 48, "bf16"), with_bias(33, 257, 48)),
    (with_residuals(100, 70, 130, "f16", 2), added(100, 70, 130, 2)),
    (gated(50, 40, 33, "f16"), silu_of(50, 40, 33)),
    (wide(100, 70, 130, has_columns=True), turned(100, 70, 130)),
    (batched(2, 13, 20, 24, 32), of_batches(26, 20, 24, 32)),
    (gradient(100, 70, 130), of_turned_rows(100, 70, 130)),
    (padded(100, 70, 130, 160), of_padded_rows(100, 70, 130, 160)),
]


def shown(case: tuple[Kernel, Any]) -> str:
    kernel, _ = case
    extents = "x".join(str(axis.extent) for axis in (*kernel.outer, *kernel.reduction))
    return f"{kernel.name}-{extents}-{kernel.params[0].dtype.value}"


@pytest.mark.sweep
@pytest.mark.third_party
@pytest.mark.parametrize("case", CASES, ids=shown)
def test_linalg_equals_float64_and_triton_s_interpreter(
    case: tuple[Kernel, Exact], tmp_path: Path
) -> None:
    need(*TOOLS)
    kernel, exact_of = case
    built = built_of(kernel)
    assert tiling_of(built)["cores"] == "cube and vector"
    given = random_buffers(kernel, {})
    arrays = [given[p.name].copy() for p in kernel.params]
    run_linalg(built, arrays, {}, tmp_path)
    exact, terms = exact_of(given)
    rounding = ROUNDING[kernel.params[-1].dtype]
    # One rounding of the result, and those of sums in f32.
    allowed = rounding * np.abs(exact) + 2.0**-20 * terms + 1e-6
    got = arrays[-1].astype(np.float64).reshape(exact.shape)
    assert (np.abs(got - exact) <= allowed).all()
    (interpreted,) = run_interpreted([interpreted_case(kernel, given)])
    assert not isinstance(interpreted, str), interpreted
    other = interpreted[-1].astype(np.float64).reshape(exact.shape)
    # The interpreter truncates to bf16, where the chip rounds.
    assert (np.abs(got - other) <= 2 * allowed).all()


@pytest.mark.third_party
def test_linalg_of_a_varying_number_of_rows_equals_float64(tmp_path: Path) -> None:
    need(*TOOLS)
    kernel = wide("s0", 70, 130)
    built = built_of(kernel)
    tiling = tiling_of(built)
    assert (tiling["cube"]["tiles"], built.launch.grid[0].as_int()) == (None, CUBE.cores)
    for rows in (1, 50, 200):
        given = random_buffers(kernel, {"s0": rows})
        arrays = [given[p.name].copy() for p in kernel.params]
        folder = tmp_path / str(rows)
        folder.mkdir()
        run_linalg(built, arrays, {"s0": rows}, folder)
        given["in1"] = given["in1"].reshape(70, 130).T.copy().reshape(-1)
        exact, terms = turned(rows, 70, 130)(given)
        got = arrays[-1].astype(np.float64).reshape(exact.shape)
        assert (np.abs(got - exact) <= 2.0**-20 * terms + 1e-6).all()


@pytest.mark.third_party
def test_linalg_with_64_bit_positions_equals_float64(tmp_path: Path) -> None:
    """Of a varying number of rows, the general variant counts in 64 bits."""
    need(*TOOLS)
    kernel = scaled(32, "f16")
    built = replace_sizes(kernel, 1 << 30)
    assert dict(built.launch.extras)["index_bits"] == "64"
    given = random_buffers(kernel, {"s0": 20})
    given["in1"] = np.abs(given["in1"]) + 1
    arrays = [given[p.name].copy() for p in kernel.params]
    run_linalg(built, arrays, {"s0": 20}, tmp_path)
    x = wide_of(given, "in0", 20, 32) / wide_of(given, "in1", 20, 1)
    scale = wide_of(given, "in3", 4, 1, 12)
    weight = (wide_of(given, "in2", 4, 32, 12) * scale).astype(np.float16).astype(np.float64)
    exact = np.einsum("mk,akb->mab", x.astype(np.float16).astype(np.float64), weight)
    exact = exact.reshape(20, 48) + wide_of(given, "in4", 1, 48) + wide_of(given, "in5", 20, 48)
    got = arrays[-1].astype(np.float64).reshape(20, 48)
    np.testing.assert_allclose(got, exact, rtol=2e-3, atol=2e-2)


def replace_sizes(kernel: Kernel, most: int) -> BuiltKernel:
    """The general variant of the kernel whose sizes reach so far."""
    return built_of(replace(kernel, sizes=tuple(replace(s, upper=most) for s in kernel.sizes)))


@pytest.mark.golden
def test_source_of_a_product_equals_its_golden() -> None:
    built = built_of(biased_gelu(512, 768, 3072, "bf16"))
    text = next(s.content for s in built.stages if s.name == "triton").decode()
    assert_golden_file(text, Path(__file__).parent / "goldens" / "cube_product.py.txt")


def test_the_product_and_what_follows_it_are_one_function() -> None:
    text = linalg_of(built_of(biased_gelu(512, 768, 768, "f16")))
    assert text.count("func.func @") == 1
    product = text.index("linalg.matmul")
    assert text.count("linalg.matmul") == 1
    # The operands are f16, the sums f32.
    line = next(line for line in text.splitlines() if "linalg.matmul" in line)
    assert re.search(r"tensor<\d+x\d+xf16>, tensor<\d+x\d+xf16>\) outs\(.*xf32>\)", line)
    for after in ("math.erf", "arith.truncf", "bufferization.materialize_in_destination"):
        assert text.index(after) > product


@pytest.mark.parametrize(
    ("kernel", "transposes"),
    [
        (linear(512, 768, 768), 1),  # a weight (n, k)
        (wide(512, 768, 768, has_columns=True), 0),
        (gradient(512, 768, 768), 1),  # x is (k, m)
    ],
)
def test_blocks_are_copied_as_factors_lie_in_memory(kernel: Kernel, transposes: int) -> None:
    text = linalg_of(built_of(kernel))
    assert text.count("linalg.transpose") == transposes
    # The adapter's mark of blocks whose last axis is strided.
    assert "MayImplicitTranspose" not in text


def test_both_products_of_a_gated_layer_are_in_one_loop() -> None:
    lines = linalg_of(built_of(gated(512, 768, 768))).splitlines()
    first, second = (n for n, line in enumerate(lines) if "linalg.matmul" in line)
    assert not [line for line in lines[first:second] if "scf." in line]


def test_the_stub_states_cores_buffers_and_tiles() -> None:
    if find_bishengir() is not None:
        pytest.skip("this machine makes real objects")
    built = built_of(linear(4096, 4096, 4096))
    content = next(s.content for s in built.stages if s.name == BINARY_STAGE)
    section = ELFFile(io.BytesIO(content)).get_section_by_name(".kernelfarm.tiling")
    stated = json.loads(section.data())
    assert stated == tiling_of(built)
    assert (stated["cores"], stated["form"]) == ("cube and vector", "product")
    assert (stated["xblock"], stated["rblock"], stated["kblock"]) == (128, 256, 256)
    assert stated["cube"] == {
        "core_tiles": 22,
        "cube_cores": 24,
        "cube_cores_limit": 24,
        "l0_points": 64,
        "l0a_bytes": 32768,
        "l0a_limit_bytes": 65536,
        "l0b_bytes": 65536,
        "l0b_limit_bytes": 65536,
        "l0c_bytes": 131072,
        "l0c_limit_bytes": 131072,
        "l1_bytes": 393216,
        "l1_limit_bytes": 524288,
        "moved_bytes": 76414976,
        "tiles": 512,
        "unified_buffer_bytes": 196608,
        "vector_cores": 48,
    }
    assert built.launch.local_bytes == stated["unified_buffer_bytes"]
    assert built.launch.grid[0].as_int() == 24


def test_a_note_states_cores_and_buffers() -> None:
    (note,) = built_of(linear(4096, 4096, 4096)).notes
    assert note == (
        "a product on 24 of 24 cube cores and 48 of 48 vector cores, up to 22 of 512 tiles each;"
        " L0A 32768 of 65536 bytes, L0B 65536 of 65536 bytes, L0C 131072 of 131072 bytes,"
        " L1 393216 of 524288 bytes, unified buffer 196608 of 196608 bytes"
    )


def test_what_does_not_fit_cube_cores_is_computed_by_vector_cores() -> None:
    tiny = replace(TARGET, cube=replace(CUBE, l1_bytes=512))
    built = BACKEND.build(linear(64, 64, 64), tiny)[-1]
    assert tiling_of(built)["cores"] == "vector"
    assert "linalg.matmul" not in linalg_of(built)
    assert built.notes == ("no product on cube cores: no tile fits their buffers",)


def test_what_the_toolchain_refuses_is_computed_by_vector_cores() -> None:
    """Triton takes no block of more than 2^20 elements, which this chip would hold."""
    large = 1 << 26
    cube = replace(CUBE, l0a_bytes=large, l0b_bytes=large, l0c_bytes=large, l1_bytes=large)
    chip = replace(TARGET.section(LocalBufferFacts), size_bytes=large)
    wide_chip = replace(TARGET, cube=replace(cube, cores=1), local_buffer=chip)
    built = BACKEND.build(linear(4096, 4096, 64), wide_chip)[-1]
    assert tiling_of(built)["cores"] == "vector"
    (note,) = built.notes
    assert re.match(r"no product on cube cores: triton \S+ refuses kernel linear", note)


def test_a_vector_by_a_matrix_of_contiguous_columns_is_a_product_of_one_row() -> None:
    built = built_of(vector(70, 130))
    assert tiling_of(built)["cores"] == "cube and vector"
