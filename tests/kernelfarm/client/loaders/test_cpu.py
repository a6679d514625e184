"""The client's loader lets in what it should, and nothing else."""

from __future__ import annotations

import dataclasses
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from codegen_svc.emitters.llvm.parallel import OTHER_VECTORS
from kernelfarm.client.loaders import cpu
from kernelfarm.client.loaders.contract import raise_for
from kernelfarm.client.loaders.cpu import CpuLoader, openmp_runtime
from kernelfarm.client.loaders.elf import SharedLibrary, read_shared_library
from kernelfarm.client.loaders.host_target import Processor, host_cpu_target, this_processor
from kernelfarm.client.loaders.kernel_library import ALLOWED_SYMBOLS, check_library
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, MalformedMessageError, UnavailableError
from kernelfarm.ir.artifact import LaunchFacts
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import ProcessorFacts, target_facts
from tests.support.compiled_kernels import built, kernel, loaded, param, pointwise, run, stage
from tests.support.loop_kernels.optimizer_shapes import layer_norm_silu

F = DType.F32
SAMPLE = pointwise("exp", (F,), F, 100)
TARGETS = ("cpu:aarch64", "cpu:x86-64-v3", "cpu:x86-64-v4")


def _facts(**extras: str) -> LaunchFacts:
    return LaunchFacts(
        "exp_f32_f32", arguments=("buffer", "buffer", "threads"), extras=tuple(extras.items())
    )


def checked(library: bytes) -> SharedLibrary:
    """The facts of a library that this processor may load."""
    processor = this_processor()
    return check_library(library, processor.elf_machine, processor.name)


def test_built_libraries_import_only_symbols_of_the_closed_list() -> None:
    for sample in (SAMPLE, layer_norm_silu(100, 64), pointwise("fmod", (F, F), F, 64)):
        facts = read_shared_library(stage(built(sample), "so"))
        assert facts.undefined <= ALLOWED_SYMBOLS
        assert facts.functions == {sample.name}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sample", [SAMPLE, layer_norm_silu(100, 64)], ids=["small", "large"])
def test_truncated_library_is_refused_at_every_length(sample: Kernel, target: str) -> None:
    """By the ELF reader alone: digests find it too, but the check must hold by itself."""
    library = stage(built(sample, target), "so")
    assert read_shared_library(library).functions == {sample.name}
    for length in range(len(library)):
        with pytest.raises(MalformedMessageError):
            read_shared_library(library[:length])


@pytest.mark.parametrize("target", TARGETS)
def test_library_with_something_behind_it_is_refused(target: str) -> None:
    library = stage(built(SAMPLE, target), "so")
    for count in (1, 16, 64, 4096):
        with pytest.raises(MalformedMessageError, match="its headers name"):
            read_shared_library(library + bytes(count))


# Places of the tables, and sizes and numbers of what they hold.
HEADER_FIELDS = ((32, "<Q"), (40, "<Q"), *((offset, "<H") for offset in range(52, 62, 2)))


@pytest.mark.parametrize(("offset", "form"), HEADER_FIELDS)
def test_header_that_names_what_is_not_there_is_refused(offset: int, form: str) -> None:
    for value in (63, 0xFFF0, 0xFFFF):
        library = bytearray(stage(built(SAMPLE), "so"))
        struct.pack_into(form, library, offset, value)
        with pytest.raises(MalformedMessageError):
            read_shared_library(bytes(library))


def test_bytes_that_are_no_elf_file_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="expected a 64-bit little-endian ELF file"):
        CpuLoader().load(b"#!/bin/sh\n", _facts(abi="kf-cpu-1"))


def test_relocatable_object_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="expected a shared library"):
        checked(stage(built(SAMPLE), "object"))


def test_library_of_another_machine_is_refused() -> None:
    other = "cpu:aarch64" if host_cpu_target() != "cpu:aarch64" else "cpu:x86-64-v3"
    with pytest.raises(MalformedMessageError, match="ELF machine"):
        checked(stage(built(SAMPLE, other), "so"))


def test_binary_of_another_interface_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="kf-cpu-1"):
        CpuLoader().load(stage(built(SAMPLE), "so"), _facts(abi="kf-cpu-9"))


def test_a_missing_feature_of_the_processor_is_named() -> None:
    facts = _facts(abi="kf-cpu-1", cpu_flags="fma warp_drive")
    with pytest.raises(UnavailableError, match="warp_drive"):
        CpuLoader().load(stage(built(SAMPLE), "so"), facts)


@pytest.mark.parametrize(("length", "found"), [(None, "none"), (16, "16"), (64, "64")])
def test_a_kernel_for_another_length_of_vectors_is_refused(
    length: int | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "sve_vector_bytes", lambda: length)
    library, facts = stage(built(SAMPLE), "so"), _facts(abi="kf-cpu-1", sve_bytes="32")
    with pytest.raises(UnavailableError, match=f"of 32 bytes, and this thread has {found};"):
        CpuLoader().load(library, facts)
    monkeypatch.setattr(cpu, "sve_vector_bytes", lambda: 32)
    assert CpuLoader().load(library, facts).bind(())


def test_a_kernel_states_the_length_of_vectors_that_it_needs() -> None:
    extras = {t: dict(built(SAMPLE, t).launch.extras) for t in (*TARGETS, "cpu:aarch64-sve256")}
    lengths = {target: found.get("sve_bytes") for target, found in extras.items()}
    assert lengths == {**dict.fromkeys(TARGETS), "cpu:aarch64-sve256": "32"}


def test_a_status_for_vectors_of_another_length_is_explained() -> None:
    with pytest.raises(UnavailableError, match="k was compiled for SVE vectors of another length"):
        raise_for(OTHER_VECTORS, "k")


def test_missing_symbol_is_named() -> None:
    variant = built(SAMPLE)
    wrong = dataclasses.replace(variant.launch, symbol="absent")
    with pytest.raises(MalformedMessageError, match="absent"):
        CpuLoader().load(stage(variant, "so"), wrong)


def test_wrong_number_of_sizes_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="takes 0 sizes, got 2"):
        loaded(SAMPLE).bind((1, 2))


@pytest.mark.third_party
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('#include <stdlib.h>\nint f(void) { return system("true"); }', "imports system"),
        (
            "__attribute__((constructor)) static void g(void) {}\nint f(void) { return 0; }",
            "load time",
        ),
    ],
)
def test_library_that_does_more_than_kernels_do_is_refused(
    source: str, reason: str, tmp_path: Path
) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang-19")
    if compiler is None:
        pytest.skip("NOT RUN: no C compiler (Debian package clang-19)")
    code, library = tmp_path / "evil.c", tmp_path / "evil.so"
    code.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-nostdlib", "-o", library, code], check=True)
    with pytest.raises(MalformedMessageError, match=reason):
        checked(library.read_bytes())


def test_library_that_needs_another_library_is_refused() -> None:
    library = bytearray(stage(built(SAMPLE), "so"))
    assert checked(bytes(library))
    offset, count = (
        struct.unpack_from("<Q", library, 32)[0],
        struct.unpack_from("<H", library, 56)[0],
    )
    for k in range(count):
        kind, _, start = struct.unpack_from("<IIQ", library, offset + 56 * k)
        if kind == 2:
            struct.pack_into("<Q", library, start, 1)
    with pytest.raises(MalformedMessageError, match="another library"):
        checked(bytes(library))


def test_hundreds_of_libraries_load_beside_each_other() -> None:
    """Equal paths would make the dynamic linker give the first library again."""
    variant = built(pointwise("neg", (F,), F, 8))
    library = stage(variant, "so")
    x = np.arange(8, dtype=np.float32)
    handles = set()
    for number in range(300):
        loader = CpuLoader()
        marked = bytearray(library)  # in the header of the section that is none: nobody reads it
        struct.pack_into("<Q", marked, struct.unpack_from("<Q", library, 40)[0] + 56, number)
        kernel_ = loader.load(bytes(marked), variant.launch)
        handles.add(kernel_._library._handle)
    assert len(handles) == 300
    out = np.zeros(8, np.float32)
    assert run(pointwise("neg", (F,), F, 8), {"in0": x, "out0": out}) == 0
    np.testing.assert_array_equal(out, -x)


def test_same_binary_is_loaded_once() -> None:
    variant, loader = built(SAMPLE), CpuLoader()
    first = loader.load(stage(variant, "so"), variant.launch)
    second = loader.load(stage(variant, "so"), variant.launch)
    assert first._library is second._library


def test_best_target_of_this_machine_fits_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELFARM_HOST_TARGET", raising=False)
    assert host_cpu_target() == this_processor().targets()[0]
    assert this_processor().lacks(target_facts(host_cpu_target())) == []


def _processor(*targets: str) -> Processor:
    flags = (flag for t in targets for flag in target_facts(t).section(ProcessorFacts).flags)
    return Processor("x86_64", frozenset(flags))


def test_a_processor_runs_the_widest_target_that_it_has_all_features_of() -> None:
    avx2, avx512 = _processor("cpu:x86-64-v3"), _processor("cpu:x86-64-v4")
    assert avx2.target() == "cpu:x86-64-v3"
    assert avx512.target() == "cpu:x86-64-v4"
    assert avx512.target("cpu:x86-64-v3") == "cpu:x86-64-v3"
    arm = dataclasses.replace(_processor("cpu:aarch64"), name="aarch64")
    assert (arm.target(), arm.targets()) == ("cpu:aarch64", ("cpu:aarch64",))


def test_a_processor_prefers_the_target_of_its_maker_among_equal_widths() -> None:
    avx512 = dataclasses.replace(_processor("cpu:x86-64-v4"), maker="AuthenticAMD")
    assert avx512.targets()[:2] == ("cpu:x86-64-v4-amd", "cpu:x86-64-v4")
    assert avx512.target("cpu:x86-64-v4") == "cpu:x86-64-v4"
    dots = dataclasses.replace(_processor("cpu:x86-64-v4-bf16-amd"), maker="AuthenticAMD")
    assert dots.targets()[:2] == ("cpu:x86-64-v4-bf16-amd", "cpu:x86-64-v4-amd")
    for hidden in ("avx512_bf16", "avx512_vnni"):
        without = dataclasses.replace(dots, flags=dots.flags - {hidden})
        assert without.target() == "cpu:x86-64-v4-amd"
    avx2 = dataclasses.replace(_processor("cpu:x86-64-v3"), maker="AuthenticAMD")
    assert avx2.target() == "cpu:x86-64-v3-amd"
    with pytest.raises(CallerError, match="lacks the maker AuthenticAMD"):
        _processor("cpu:x86-64-v3").target("cpu:x86-64-v3-amd")


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("cpu:x86-64-v4", "lacks avx512bw, avx512cd, .*; expected cpu:x86-64-v3; unset it"),
        ("cpu:aarch64", "lacks the instructions of"),
        ("cuda:sm_90a", "it is not a CPU target"),
        ("x86-64-v3", "it is not a CPU target"),
    ],
)
def test_a_target_that_the_processor_does_not_run_is_refused(reference: str, why: str) -> None:
    with pytest.raises(CallerError, match=f"KERNELFARM_HOST_TARGET={reference}: .*{why}"):
        _processor("cpu:x86-64-v3").target(reference)


def test_the_target_of_the_settings_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = this_processor().targets()[-1]
    monkeypatch.setenv("KERNELFARM_HOST_TARGET", lowest)
    assert host_cpu_target() == lowest
    monkeypatch.setenv("KERNELFARM_HOST_TARGET", "cpu:x87")
    with pytest.raises(CallerError, match="cpu:x87"):
        host_cpu_target()


def test_context_is_the_openmp_runtime_s_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert CpuLoader().context() == 3
    finally:
        torch.set_num_threads(before)
    assert openmp_runtime() is not None


WITHOUT_OPENMP = """
import ctypes, sys
import numpy as np
from kernelfarm.client.loaders import cpu
from kernelfarm.ir.artifact import LaunchFacts
cpu.openmp_runtime = lambda: None
extras = (("abi", cpu.ABI),)
facts = LaunchFacts(sys.argv[2], arguments=("buffer", "buffer", "threads"), extras=extras)
kernel = cpu.CpuLoader().load(open(sys.argv[1], "rb").read(), facts)
assert not hasattr(ctypes.CDLL(None), "GOMP_parallel")
assert "torch" not in sys.modules
x, out = np.ones(200000, np.float32), np.zeros(200000, np.float32)
table = (ctypes.c_void_p * 2)(x.ctypes.data, out.ctypes.data)
assert kernel.bind(())(ctypes.addressof(table), 8)() == 0
assert (out == -1).all()
print("one thread")
"""


def test_process_without_openmp_and_torch_runs_one_thread(tmp_path: Path) -> None:
    sample = pointwise("neg", (F,), F, 200_000)
    path = tmp_path / "kernel.so"
    path.write_bytes(stage(built(sample), "so"))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENMP, str(path), sample.name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "one thread", done.stderr


def test_kernel_without_parameters_of_size_zero_loads() -> None:
    empty = kernel("empty", (param("out0", F, 0),), (), {"d0": 0})
    assert run(empty, {"out0": np.zeros(0, np.float32)}) == 0
