"""Third-party tools read every artifact of real inputs, for every target.

`tests/e2e/compiled_inputs.py` says which of them only the slow run has.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import msgpack
import pytest
from elftools.elf.elffile import ELFFile

from codegen_svc.backends.cuda.wheel_tools import nvidia_tool
from kernelfarm.targets import GpuFacts, LocalBufferFacts, TargetFacts, target_facts
from tests.e2e.compiled_inputs import Binary, Everything, pairs_of
from tests.support.third_party import need, output_of

pytestmark = pytest.mark.third_party

NOT_KNOWN_TO_LLVM_19 = {"rocm:gfx950"}
STUB_SECTIONS = {f".kernelfarm.{name}" for name in ("linalg", "tiling", "launch", "stub")}


def written(folder: Path, content: bytes) -> str:
    path = folder / "binary"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(("name", "target"), pairs_of("cuda"))
def test_nvidias_tools_read_every_cubin(
    name: str, target: str, everything: Everything, tmp_path: Path
) -> None:
    tools = {tool: nvidia_tool(tool) for tool in ("cuobjdump", "nvdisasm")}
    for tool, path in tools.items():
        if path is None:
            pytest.skip(f"NOT RUN: {tool}")
    arch = target_facts(target).arch
    for binary in everything.binaries(name, target):
        launch, path = binary.artifact.launch, written(tmp_path, binary.loaded)
        assert f".{arch}.cubin" in output_of(str(tools["cuobjdump"]), "--list-elf", path)
        usage = output_of(str(tools["cuobjdump"]), "--dump-resource-usage", path)
        functions = re.findall(r"Function (\w+):\s+REG:(\d+)", usage)
        assert functions == [(launch.symbol, str(launch.registers))]
        assert launch.symbol == binary.kernel
        if not binary.artifact.guard:  # a quarter of a second each: the general variants only
            code = output_of(str(tools["nvdisasm"]), "--print-code", "--no-dataflow", path)
            assert f".text.{launch.symbol}" in code and "EXIT" in code


@pytest.mark.parametrize(("name", "target"), pairs_of("rocm"))
def test_notes_of_every_code_object_name_chip_and_kernel(
    name: str, target: str, everything: Everything
) -> None:
    facts = target_facts(target)
    for binary in everything.binaries(name, target):
        elf = ELFFile(io.BytesIO(binary.loaded))
        assert (elf["e_type"], elf["e_machine"]) == ("ET_DYN", "EM_AMDGPU")
        (note,) = elf.get_section_by_name(".note").iter_notes()
        metadata = msgpack.unpackb(note["n_descdata"])
        (kernel,) = metadata["amdhsa.kernels"]
        assert metadata["amdhsa.target"].split("-")[-1] == facts.arch
        assert kernel[".name"] == binary.artifact.launch.symbol == binary.kernel
        assert kernel[".wavefront_size"] == facts.section(GpuFacts).warp_size
        symbols = {s.name for s in elf.get_section_by_name(".dynsym").iter_symbols()}
        assert {binary.kernel, f"{binary.kernel}.kd"} <= symbols


# LLVM 19 does not know gfx950; its notes are read above.
@pytest.mark.parametrize(
    ("name", "target"), [p for p in pairs_of("rocm") if p.values[1] not in NOT_KNOWN_TO_LLVM_19]
)
def test_llvm_disassembles_every_code_object(
    name: str, target: str, everything: Everything, tmp_path: Path
) -> None:
    need("llvm-objdump-19")
    for binary in everything.binaries(name, target):
        code = output_of("llvm-objdump-19", "-d", written(tmp_path, binary.loaded))
        assert f"<{binary.kernel}>:" in code and "s_endpgm" in code


@pytest.mark.parametrize(("name", "target"), pairs_of("cpu"))
def test_llvm_disassembles_every_object(
    name: str, target: str, everything: Everything, tmp_path: Path
) -> None:
    need("llvm-objdump-19")
    for binary in everything.binaries(name, target):
        path = written(tmp_path, binary.contents["object"])
        code = output_of("llvm-objdump-19", "-d", path)
        machine = "aarch64" if "aarch64" in target else "x86-64"
        assert re.search(rf"file format elf64-.*{machine}", code), code[:300]
        assert f"<{binary.kernel}>:" in code
        assert "<unknown>" not in code and "(bad)" not in code


@pytest.mark.parametrize(("name", "target"), pairs_of("cpu"))
def test_llvm_reads_every_shared_library(
    name: str, target: str, everything: Everything, tmp_path: Path
) -> None:
    need("llvm-readelf-19")
    machine = "AArch64" if "aarch64" in target else "X86-64"
    for binary in everything.binaries(name, target):
        path = written(tmp_path, binary.loaded)
        assert binary.artifact.binary.name == "so"
        header = output_of("llvm-readelf-19", "--file-header", path)
        assert re.search(r"Type:\s+DYN", header) and re.search(rf"Machine:.*{machine}", header)
        symbols = output_of("llvm-readelf-19", "--dyn-symbols", path).splitlines()
        exported = [s.split() for s in symbols if " FUNC " in s and " UND " not in s]
        assert [s[-1] for s in exported] == [binary.artifact.launch.symbol] == [binary.kernel]


@pytest.mark.parametrize(("name", "target"), pairs_of("ascend"))
def test_an_elf_reader_finds_text_tiling_and_facts_in_every_stub(
    name: str, target: str, everything: Everything
) -> None:
    for binary in everything.binaries(name, target):
        if not binary.artifact.is_stub:
            pytest.skip("this farm makes real objects: bishengir-compile is installed")
        check_stub(binary, target_facts(target))


def check_stub(binary: Binary, facts: TargetFacts) -> None:
    elf = ELFFile(io.BytesIO(binary.loaded))
    assert (elf["e_type"], elf["e_machine"]) == ("ET_REL", "EM_NONE")
    assert elf.get_section_by_name(".symtab").get_symbol_by_name(binary.kernel)
    sections = {s.name: s.data() for s in elf.iter_sections() if s.name in STUB_SECTIONS}
    assert set(sections) == STUB_SECTIONS
    assert sections[".kernelfarm.stub"].decode() == binary.artifact.stub_reason
    assert "cannot run" in binary.artifact.stub_reason
    linalg = sections[".kernelfarm.linalg"].decode()
    assert linalg.encode() == binary.contents["linalg"]
    assert f"func.func @{binary.kernel}(" in linalg
    # Triton's operations are lowered; its attributes on arguments, in braces, may remain.
    assert not re.search(r"(?<!\{)\btt\.\w+", linalg)
    launch = json.loads(sections[".kernelfarm.launch"])
    assert (launch["symbol"], tuple(launch["arguments"])) == (
        binary.artifact.launch.symbol,
        binary.artifact.launch.arguments,
    )
    tiling = json.loads(sections[".kernelfarm.tiling"])
    chip = facts.section(LocalBufferFacts)
    assert tiling["unified_buffer_limit_bytes"] == chip.size_bytes
    assert 0 < tiling["unified_buffer_bytes"] <= chip.size_bytes


@pytest.mark.parametrize(("name", "target"), pairs_of("ascend"))
def test_llvm_reads_every_stub(
    name: str, target: str, everything: Everything, tmp_path: Path
) -> None:
    need("llvm-readelf-19")
    for binary in everything.binaries(name, target):
        path = written(tmp_path, binary.loaded)
        listed = output_of("llvm-readelf-19", "--sections", "--symbols", path)
        assert binary.kernel in listed
        assert set(listed.split()) >= STUB_SECTIONS or not binary.artifact.is_stub
