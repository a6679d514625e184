"""The loader of `examples/riscv_vendor`: memory, statuses, and what it refuses."""

from __future__ import annotations

import ctypes
import mmap
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from codegen_svc.backends.llvm_libraries import LlvmBackend
from kernelfarm.client.loaders.contract import LoadedKernel
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError, MalformedMessageError, UnavailableError
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.interpret import run_kernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import ProcessorFacts, TargetFacts
from kernelfarm.targets.parse import parse_record
from tests.support import compiled_kernels
from tests.support.compiled_kernels import pointwise, stage
from tests.support.loop_kernels import emitter_shapes
from tests.support.riscv_vendor import PACKAGE
from tests.support.third_party import need

F = DType.F32
ADD = pointwise("add", (F, F), F, 100)
Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.third_party


class Vendor:
    """The modules of the vendor's package, and its smallest target."""

    def __init__(self) -> None:
        from riscv_vendor import backend, devices, emulator  # noqa: PLC0415 - on the path by now

        folder = PACKAGE / "riscv_vendor"
        shared = tomllib.loads((folder / "riscv.toml").read_text())["chips"]
        own = tomllib.loads((folder / "rv64gcv.toml").read_text())
        self.facts = parse_record(TargetFacts, {**shared, **own, "vendor": "riscv"}, "rv64gcv")
        self.backend: LlvmBackend = backend.BACKEND
        self.emulator = emulator
        self.loader = devices.EmulatedLoader(self.facts.section(ProcessorFacts))

    def built(self, kernel: Kernel) -> BuiltKernel:
        (variant,) = self.backend.build(kernel, self.facts)
        return variant

    def loaded(self, kernel: Kernel) -> LoadedKernel:
        variant = self.built(kernel)
        return self.loader.load(stage(variant, "so"), variant.launch)

    def run(self, kernel: Kernel, *buffers: Array, sizes: tuple[int, ...] = ()) -> int:
        table = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
        return self.loaded(kernel).bind(sizes)(ctypes.addressof(table), 1)()


@pytest.fixture(scope="module")
def vendor() -> Iterator[Vendor]:
    """The package is importable for this module alone."""
    need("qemu-riscv64", "riscv64-linux-gnu-gcc")
    sys.path.insert(0, str(PACKAGE))
    yield Vendor()
    sys.path.remove(str(PACKAGE))
    for name in [n for n in sys.modules if n.partition(".")[0] == "riscv_vendor"]:
        del sys.modules[name]


def test_results_may_overwrite_operands(vendor: Vendor) -> None:
    x, y = np.arange(100, dtype=np.float32), np.full(100, 0.5, np.float32)
    expected = x + y
    assert vendor.run(ADD, x, y, x) == 0
    assert np.array_equal(x, expected)


def test_buffers_may_overlap_and_adjoin(vendor: Vendor) -> None:
    arena = np.arange(300, dtype=np.float32)
    x, y, out = arena[:100], arena[50:150], arena[150:250]
    expected, rest = x + y, arena[250:].copy()
    assert vendor.run(ADD, x, y, out) == 0
    assert np.array_equal(out, expected)
    assert np.array_equal(arena[:150], np.arange(150)) and np.array_equal(arena[250:], rest)


def test_memory_that_a_kernel_only_reads_may_be_read_only(vendor: Vendor) -> None:
    with mmap.mmap(-1, 400, prot=mmap.PROT_READ) as memory:
        x = np.frombuffer(memory, np.float32)
        y, out = np.ones(100, np.float32), np.zeros(100, np.float32)
        assert vendor.run(ADD, x, y, out) == 0
        assert np.array_equal(out, y)
        del x


def test_sizes_of_buffers_follow_the_sizes_of_a_launch(vendor: Vendor) -> None:
    kernel = emitter_shapes.dynamic_add()
    for count in (1, 17, 1000):
        named = dict.fromkeys((size.name for size in kernel.sizes), count)
        rng = np.random.default_rng(count)
        buffers = {
            p.name: rng.standard_normal(p.size_elems.evaluate(named)).astype(np.float16)
            for p in kernel.params
        }
        expected = {name: array.copy() for name, array in buffers.items()}
        run_kernel(kernel, expected, named)
        assert vendor.run(kernel, *buffers.values(), sizes=tuple(named.values())) == 0
        for name, array in buffers.items():
            assert np.array_equal(array, expected[name])


def test_an_index_out_of_bounds_is_an_error_of_the_launch(vendor: Vendor) -> None:
    kernel = emitter_shapes.embedding()
    buffers = [
        np.full(p.size_elems.evaluate({}), 99, compiled_kernels.NUMPY[p.dtype])
        for p in kernel.params
    ]
    status = vendor.run(kernel, *buffers)
    with pytest.raises(IndexError, match="out of bounds in kernel embedding"):
        vendor.loader.failed(status, lambda: 0, "embedding")


def test_libraries_of_other_processors_are_refused(vendor: Vendor) -> None:
    own = vendor.built(ADD)
    with pytest.raises(MalformedMessageError, match=r"ELF machine \d+, this one is 243 \(RISC-V\)"):
        vendor.loader.load(stage(compiled_kernels.built(ADD), "so"), own.launch)


def test_a_kernel_without_the_sizes_of_its_buffers_is_refused(vendor: Vendor) -> None:
    (plain,) = LlvmBackend("riscv", "riscv_vendor").build(ADD, vendor.facts)
    with pytest.raises(MalformedMessageError, match="does not state buffer_0_bytes"):
        vendor.loader.load(stage(plain, "so"), plain.launch)


def test_a_missing_function_is_named(vendor: Vendor) -> None:
    emulator = vendor.emulator.Emulator(128)
    with pytest.raises(MalformedMessageError, match=r"cannot load nowhere: .*undefined symbol"):
        emulator.load(stage(vendor.built(ADD), "so"), "nowhere")
    emulator.close()


def test_an_emulator_that_ended_is_an_error_and_not_a_wait(vendor: Vendor) -> None:
    emulator = vendor.emulator.Emulator(128)
    emulator._process.kill()
    with pytest.raises(InternalError, match="processor has ended with status -9"):
        emulator.launch(vendor.emulator.Request(0, (), (), ()))
    emulator.close()


def test_missing_tools_are_named_with_what_installs_them(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match=r"qemu-riscv64 is missing.*apt-get install"):
        vendor.emulator.Emulator(128)
    tools = {tool.name: tool.is_found for tool in vendor.backend.tools()}
    assert tools == {
        **{"LLVM": True, "LLD": True},
        **{"qemu-riscv64": False, "riscv64-linux-gnu-gcc": False},
    }
