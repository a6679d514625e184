"""The target of a machine, from texts as /proc/cpuinfo has them."""

from __future__ import annotations

import pytest

from kernelfarm.client.loaders.host_target import read_processor, this_processor
from kernelfarm.client.loaders.sve_length import sve_vector_bytes
from kernelfarm.errors import CallerError

PLAIN = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
DOTS = f"{PLAIN} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
NARROW = f"{DOTS} i8mm bf16"
SVE = f"{NARROW} sve svei8mm svebf16"


def cpuinfo(features: str, part: str) -> str:
    """The text of two processors of Arm's own design."""
    lines = [
        "BogoMIPS\t: 2100.00",
        f"Features\t: {features}",
        "CPU implementer\t: 0x41",
        "CPU architecture: 8",
        "CPU variant\t: 0x1",
        f"CPU part\t: {part}",
        "CPU revision\t: 1",
    ]
    blocks = ["\n".join([f"processor\t: {number}", *lines]) for number in range(2)]
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize(
    ("features", "part", "target"),
    [
        (PLAIN, "0xd08", "cpu:aarch64"),  # Cortex-A72, Graviton
        (DOTS, "0xd0c", "cpu:aarch64"),  # Neoverse N1, Graviton 2
        (f"{PLAIN} sve asimddp", "0x001", "cpu:aarch64"),  # A64FX
        (f"{DOTS} bf16", "0xd0c", "cpu:aarch64"),
        (f"{DOTS} i8mm", "0xd0c", "cpu:aarch64"),
        (NARROW, "0xd49", "cpu:aarch64-bf16"),  # a system that hides SVE
    ],
)
def test_an_arm_processor_runs_the_target_of_its_features(
    features: str, part: str, target: str
) -> None:
    processor = read_processor("aarch64", cpuinfo(features, part), lambda: 32)
    assert processor.target() == target
    assert processor.target("cpu:aarch64") == "cpu:aarch64"
    assert not processor.maker


@pytest.mark.parametrize(
    ("length", "part"),
    [
        (32, "0xd40"),  # Neoverse V1, Graviton 3
        (16, "0xd4f"),  # Neoverse V2, Graviton 4, Axion, Grace
        (64, "0xd40"),
        (None, "0xd40"),  # a system that lists SVE, and has no length
    ],
)
def test_a_process_runs_code_for_vectors_of_its_own_length_alone(
    length: int | None, part: str
) -> None:
    processor = read_processor("aarch64", cpuinfo(SVE, part), lambda: length)
    assert processor.target() == "cpu:aarch64-bf16"
    if length == 32:
        assert processor.target("cpu:aarch64-sve256") == "cpu:aarch64-sve256"
    else:
        found = rf"lacks SVE vectors of 32 bytes \(here they have {length or 'none'}\); expected"
        with pytest.raises(CallerError, match=found):
            processor.target("cpu:aarch64-sve256")


def test_the_length_is_not_asked_of_a_processor_without_sve() -> None:
    def length() -> int:
        raise AssertionError

    assert read_processor("aarch64", cpuinfo(NARROW, "0xd49"), length).sve_bytes is None


def test_a_processor_without_sve_has_no_length() -> None:
    assert (sve_vector_bytes() is None) == ("sve" not in this_processor().flags)


def test_a_feature_that_an_arm_processor_lacks_is_named() -> None:
    processor = read_processor("aarch64", cpuinfo(DOTS, "0xd0c"))
    with pytest.raises(CallerError, match="this processor lacks bf16, i8mm; expected cpu:aarch64;"):
        processor.target("cpu:aarch64-bf16")


def test_x86_64_lists_its_maker_and_flags() -> None:
    text = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2\n\nprocessor\t: 1\n"
    processor = read_processor("x86_64", text)
    assert (processor.maker, processor.flags) == ("AuthenticAMD", frozenset(("fpu", "avx2")))
    with pytest.raises(CallerError, match="no CPU target runs on this x86_64 processor"):
        processor.target()


def test_a_text_without_features_names_no_target() -> None:
    with pytest.raises(CallerError, match="no CPU target runs on this aarch64 processor"):
        read_processor("aarch64", "").target()
