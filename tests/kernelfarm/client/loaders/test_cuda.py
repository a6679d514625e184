"""Which target a GPU runs, and what a launch passes."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from kernelfarm.client.loaders.cuda import (
    _Arguments,
    _following,
    _launch_config,
    _LaunchAttribute,
    best_target,
)
from kernelfarm.client.loaders.tensor_maps import BufferMap, MapEncoder
from kernelfarm.dtypes import DType
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.algebra.expr import symbol
from kernelfarm.ir.artifact import LaunchFacts, TensorMapFacts


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((9, 0), "cuda:sm_90a"),
        ((8, 6), "cuda:sm_80"),
        ((8, 9), "cuda:sm_89"),
        ((10, 3), None),
        ((7, 5), None),
    ],
)
def test_gpus_get_the_newest_target_that_they_run(capability, target):
    targets = ["cuda:sm_80", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_100a", "cuda:sm_120a"]
    assert best_target(*capability, targets) == target


def test_only_a_kernel_that_waits_itself_may_start_before_the_one_ahead_has_ended() -> None:
    extents = ((5, 1, 1), (128, 1, 1))
    plain = _launch_config(extents, LaunchFacts("f", shared_bytes=64), 7)
    assert (plain.grid_x, plain.block_x, plain.shared_bytes, plain.stream) == (5, 128, 64, 7)
    assert (plain.attributes, plain.attribute_count) == (None, 0)
    early = _launch_config(extents, LaunchFacts("f", programmatic_launch=True), 7)
    assert early.attribute_count == 1
    stated = _LaunchAttribute.from_address(early.attributes)
    # cuda.h: CUlaunchAttribute is 72 bytes, of which 64 from the eighth on are the value.
    assert ctypes.sizeof(_LaunchAttribute) == 72
    assert _LaunchAttribute.flag.offset == 8
    assert (stated.kind, stated.flag, bytes(stated.rest)) == (6, 1, bytes(60))


MAP = TensorMapFacts(1, DType.BF16, (512, 64), (256,), (128, 32), 64)


class Driver:
    """Stands in for `cuTensorMapEncodeTiled` of NVIDIA's driver: a map holds what it was given."""

    def __init__(self) -> None:
        self.calls: list[list[object]] = []
        self.status = 0

    def encode(self, memory: ctypes.c_void_p, *given: ctypes._SimpleCData[int]) -> int:
        """Writes the matrix's address into each word of the map."""
        values = [[*v] if isinstance(v, ctypes.Array) else v.value for v in given]
        self.calls.append(values)
        assert memory.value is not None and memory.value % 64 == 0
        (ctypes.c_uint64 * 16).from_address(memory.value)[:] = [
            (1 << 21) | (given[2].value << 32)
        ] * 16
        return self.status


def bound(driver: Driver, version: int = 13020) -> tuple[ctypes.Array[ctypes.c_uint64], BufferMap]:
    """A pointer table with two buffers, and the map of the second one."""
    table = (ctypes.c_uint64 * 2)(0x1000, 0x2000)
    encoder = MapEncoder(driver.encode, version)
    return table, BufferMap(MAP.at({}), ctypes.addressof(table) + 8, encoder)


def words(made: BufferMap) -> list[int]:
    """The 16 words of a map."""
    return [*(ctypes.c_uint64 * 16).from_address(made.memory)]


def test_a_kernel_gets_its_buffers_then_its_sizes_then_its_maps() -> None:
    order = ("buffer", "buffer", "size", *MAP.arguments(), "scratch")
    table = (ctypes.c_uint64 * 3)(11, 22, 33)
    facts = LaunchFacts("f", arguments=order, tensor_maps=(MAP,))
    arguments = _Arguments(facts, (7,), MapEncoder(Driver().encode, 13020))
    passed, (made,) = arguments.of_table(ctypes.addressof(table))
    kinds = [ctypes.c_uint64] * 4 + [ctypes.c_int32] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_uint64]
    values = [kind.from_address(at).value for kind, at in zip(kinds, passed, strict=True)]
    assert values[:3] == [11, 22, 7]
    assert (passed[3], made.place.value) == (made.memory, 22)
    assert values[4:] == [512, 64, 128, 1, 0]


def test_a_map_has_what_the_driver_asks_for_innermost_first() -> None:
    driver = Driver()
    _, made = bound(driver)
    assert made.follow() == 0
    assert driver.calls == [[9, 2, 0x2000, [64, 512], [256], [32, 128], [1, 1], 0, 2, 2, 0]]
    assert made.memory % 64 == 0


def test_a_map_follows_its_buffer_s_address_and_is_made_once_for_each() -> None:
    driver = Driver()
    table, made = bound(driver)
    for address in (0x3000, 0x4000, 0x3000, 0x4000):
        table[1] = address
        assert made.follow() == 0
        assert made.address == address
        assert {word >> 32 for word in words(made)} == {address}
    assert len(driver.calls) == 2
    for address in range(0x5000, 0x5000 + 64 * 16, 16):  # no more of them are kept than a few
        table[1] = address
        made.follow()
    assert len(made._known) <= 16


def test_a_map_may_begin_within_its_buffer_and_vary_with_the_sizes_of_a_launch() -> None:
    driver = Driver()
    rows = symbol("s1")
    made = replace(MAP, extents=(rows, 64), strides_bytes=(2 * 64 * symbol("s0"),))
    made = replace(made, offset_bytes=32 * rows)
    facts = LaunchFacts("f", arguments=("buffer", "buffer", *made.arguments()), tensor_maps=(made,))
    table = (ctypes.c_uint64 * 2)(0x1000, 0x2000)
    encoder = MapEncoder(driver.encode, 13020)
    passed, (bound_map,) = _Arguments(facts, (3, 10), encoder).of_table(ctypes.addressof(table))
    assert bound_map.follow() == 0
    assert driver.calls[0][2:5] == [0x2000 + 320, [64, 10], [384]]
    assert [ctypes.c_int32.from_address(at).value for at in passed[3:5]] == [10, 64]
    assert ctypes.c_int64.from_address(passed[5]).value == 192
    with pytest.raises(MalformedMessageError, match=r"extents \(0, 64\); expected 1 to"):
        _Arguments(facts, (3, 0), encoder)
    odd = replace(facts, tensor_maps=(replace(made, offset_bytes=rows),))
    with pytest.raises(MalformedMessageError, match="offset 10; expected multiples of 16 bytes"):
        _Arguments(odd, (3, 10), encoder)


def test_a_box_may_have_each_second_element_of_the_matrix() -> None:
    driver = Driver()
    box, strides = (1, 4, 8, 64), (160000, 4000, 128)
    made = TensorMapFacts(1, DType.BF16, (2, 40, 31, 64), strides, box, 128, steps=(1, 2, 2, 1))
    words = ("buffer", "buffer", *made.arguments())
    assert words[2] == "stepped_tensor_map"  # which clients that know no steps refuse
    facts = LaunchFacts("f", arguments=words, tensor_maps=(made,))
    table = (ctypes.c_uint64 * 2)(0x1000, 0x2000)
    arguments = _Arguments(facts, (), MapEncoder(driver.encode, 13020))
    _, (bound_map,) = arguments.of_table(ctypes.addressof(table))
    assert bound_map.follow() == 0
    assert driver.calls[0][3:7] == [
        [64, 31, 40, 2],
        [128, 4000, 160000],
        [64, 16, 8, 1],
        [1, 2, 2, 1],
    ]


def test_a_map_that_the_driver_refuses_is_not_launched() -> None:
    driver = Driver()
    driver.status = 1
    _, made = bound(driver)
    launched: list[int] = []
    launch = _following([made], lambda: launched.append(1) or 0)
    assert launch() == 1
    assert not launched
    driver.status = 0
    assert launch() == 0
    assert launch() == 0
    assert (len(launched), len(driver.calls)) == (2, 2)


@pytest.mark.parametrize(
    ("version", "extents", "is_cleared"),
    [
        (13010, (512, 64), True),
        (13020, (512, 64), False),
        (13010, (1024, 64), False),
    ],
)
def test_older_drivers_need_a_bit_cleared_in_maps_of_small_matrices(version, extents, is_cleared):
    facts = replace(MAP, extents=extents)
    status, made = MapEncoder(Driver().encode, version).made(facts.at({}), 0x2000)
    second = int.from_bytes(made[8:16], "little")
    assert (status, second & 1 << 21) == (0, 0 if is_cleared else 1 << 21)


def test_a_map_of_a_type_that_the_driver_lacks_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="tensor map of bool; expected f16, bf16"):
        MapEncoder(Driver().encode, 13020).made(replace(MAP, dtype=DType.BOOL).at({}), 0)


def test_an_unknown_argument_is_refused():
    arguments = _Arguments(LaunchFacts("f", arguments=("buffer", "texture")), ())
    with pytest.raises(MalformedMessageError, match="expected buffer, size, scratch or tensor_map"):
        arguments.of_table(0)
