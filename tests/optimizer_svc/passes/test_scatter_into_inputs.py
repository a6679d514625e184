"""A scatter into a reshape of an updated input becomes one into the input."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernelfarm.ir.interpret import run_graph, run_program
from kernelfarm.ir.text import parse_graph
from kernelfarm.ir.verify import verify_graph
from kernelfarm.targets import target_facts
from optimizer_svc.passes.scatter_into_inputs import scatter_into_inputs
from optimizer_svc.pipeline import optimize
from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

TOKENS = """\
graph prims 1
%0: f32[5, 4, 2, 3]@[24, 6, 3, 1] = input "cache"
%1: i32[2]@[1] = input "slots"
%2: f32[2, 6]@[6, 1] = input "rows"
%3: f32[20, 6] = reshape(%0; shape=[{20}, {6}])
%4: f32[20, 6] = scatter(%3, %1, %2; dims=[0], mode="set")
%5: f32[5, 4, 2, 3] = reshape(%4; shape=[{5}, {4}, {2}, {3}])
%6: f32[20, 6] = neg(%4)
return %5: f32[5, 4, 2, 3]@[24, 6, 3, 1] into %0, %6: f32[20, 6]@[6, 1]
"""


@pytest.mark.golden
def test_a_number_of_a_row_becomes_a_page_and_a_row_of_it() -> None:
    assert_golden(
        before_and_after("scatter-into-inputs", TOKENS),
        """\
-- before scatter-into-inputs: graph
graph prims 1
%0: f32[5, 4, 2, 3]@[24, 6, 3, 1] = input "cache"
%1: i32[2]@[1] = input "slots"
%2: f32[2, 6]@[6, 1] = input "rows"
%3: f32[20, 6] = reshape(%0; shape=[{20}, {6}])
%4: f32[20, 6] = scatter(%3, %1, %2; dims=[0], mode="set")
%5: f32[5, 4, 2, 3] = reshape(%4; shape=[{5}, {4}, {2}, {3}])
%6: f32[20, 6] = neg(%4)
return %5: f32[5, 4, 2, 3]@[24, 6, 3, 1] into %0, %6: f32[20, 6]@[6, 1]
-- after: graph
graph prims 1
%0: f32[5, 4, 2, 3]@[24, 6, 3, 1] = input "cache"
%1: i32[2]@[1] = input "slots"
%2: f32[2, 6]@[6, 1] = input "rows"
%3: f32[20, 6] = reshape(%0; shape=[{20}, {6}])
%7: i64[2] = convert(%1; dtype=i64)
%8: i64[2] = full(; dtype=i64, shape=[{2}], value=4)
%9: i64[2] = floor_div(%7, %8)
%10: i64[2] = full(; dtype=i64, shape=[{2}], value=4)
%11: i64[2] = mod_floor(%7, %10)
%12: f32[2, 2, 3] = reshape(%2; shape=[{2}, {2}, {3}])
%13: f32[5, 4, 2, 3] = scatter(%0, %9, %11, %12; dims=[0, 1], mode="set")
%4: f32[20, 6] = reshape(%13; shape=[{20}, {6}])
%6: f32[20, 6] = neg(%4)
return %13: f32[5, 4, 2, 3]@[24, 6, 3, 1] into %0, %6: f32[20, 6]@[6, 1]
""",
    )


SEVERAL = """\
graph prims 1
%0: f32[5, 4, 3]@[12, 3, 1] = input "cache"
%1: i64[2, 2]@[2, 1] = input "slots"
%2: f32[2, 2, 3]@[6, 3, 1] = input "rows"
%3: f32[20, 3] = reshape(%0; shape=[{20}, {3}])
%4: f32[20, 3] = scatter(%3, %1, %2; dims=[0], mode="add")
%5: i64[2]@[1] = input "page"
%6: f32[2, 4, 3]@[12, 3, 1] = input "pages"
%7: f32[5, 4, 3] = reshape(%4; shape=[{5}, {4}, {3}])
%8: f32[5, 4, 3] = scatter(%7, %5, %6; dims=[0], mode="add")
%9: f32[60] = reshape(%8; shape=[{60}])
%10: i64[2]@[1] = input "elements"
%11: f32[2]@[1] = input "numbers"
%12: f32[60] = scatter(%9, %10, %11; dims=[0], mode="add")
%13: f32[5, 4, 3] = reshape(%12; shape=[{5}, {4}, {3}])
return %13: f32[5, 4, 3]@[12, 3, 1] into %0
"""
MIDDLE = """\
graph prims 1
%0: f32[3, 5, 4, 2]@[40, 8, 2, 1] = input "cache"
%1: i64[2]@[1] = input "slots"
%2: f32[2, 3, 2]@[6, 2, 1] = input "rows"
%3: f32[3, 20, 2] = reshape(%0; shape=[{3}, {20}, {2}])
%4: f32[3, 20, 2] = scatter(%3, %1, %2; dims=[1], mode="set")
%5: f32[3, 5, 4, 2] = reshape(%4; shape=[{3}, {5}, {4}, {2}])
return %5: f32[3, 5, 4, 2]@[40, 8, 2, 1] into %0
"""


BOTH = """\
graph prims 1
%0: f32[5, 2, 4, 3]@[24, 12, 3, 1] = input "cache"
%1: i32[2]@[1] = input "slots"
%2: f32[2, 3]@[3, 1] = input "rows"
%3: f32[5, 1, 4, 3] = slice(%0; limits=[{5}, {1}, {4}, {3}], starts=[{0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%4: f32[20, 3] = reshape(%3; shape=[{20}, {3}])
%5: f32[20, 3] = scatter(%4, %1, %2; dims=[0], mode="set")
%6: f32[5, 1, 4, 3] = reshape(%5; shape=[{5}, {1}, {4}, {3}])
%7: f32[5, 1, 4, 3] = slice(%0; limits=[{5}, {2}, {4}, {3}], starts=[{0}, {1}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%8: f32[5, 2, 4, 3] = cat(%6, %7; dim=1)
%9: f32[5, 1, 4, 3] = slice(%8; limits=[{5}, {2}, {4}, {3}], starts=[{0}, {1}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%10: f32[5, 4, 3] = reshape(%9; shape=[{5}, {4}, {3}])
%11: i32[2]@[1] = input "pages"
%12: f32[2, 4, 3]@[12, 3, 1] = input "whole"
%13: f32[5, 4, 3] = scatter(%10, %11, %12; dims=[0], mode="set")
%14: f32[5, 1, 4, 3] = reshape(%13; shape=[{5}, {1}, {4}, {3}])
%15: f32[5, 1, 4, 3] = slice(%8; limits=[{5}, {1}, {4}, {3}], starts=[{0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%16: f32[5, 2, 4, 3] = cat(%15, %14; dim=1)
return %16: f32[5, 2, 4, 3]@[24, 12, 3, 1] into %0
"""


@pytest.mark.golden
def test_a_slice_that_a_cat_joins_with_the_rest_is_written_where_it_is() -> None:
    assert_golden(
        before_and_after("scatter-into-inputs", sorted_inputs(BOTH)).partition("-- after")[2],
        """\
: graph
graph prims 1
%0: f32[5, 2, 4, 3]@[24, 12, 3, 1] = input "cache"
%1: i32[2]@[1] = input "slots"
%2: f32[2, 3]@[3, 1] = input "rows"
%11: i32[2]@[1] = input "pages"
%12: f32[2, 4, 3]@[12, 3, 1] = input "whole"
%3: f32[5, 1, 4, 3] = slice(%0; limits=[{5}, {1}, {4}, {3}], starts=[{0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%4: f32[20, 3] = reshape(%3; shape=[{20}, {3}])
%5: f32[20, 3] = scatter(%4, %1, %2; dims=[0], mode="set")
%6: f32[5, 1, 4, 3] = reshape(%5; shape=[{5}, {1}, {4}, {3}])
%7: f32[5, 1, 4, 3] = slice(%0; limits=[{5}, {2}, {4}, {3}], starts=[{0}, {1}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%17: i64[2] = convert(%1; dtype=i64)
%18: i64[2] = full(; dtype=i64, shape=[{2}], value=4)
%19: i64[2] = floor_div(%17, %18)
%20: i64[2] = full(; dtype=i64, shape=[{2}], value=4)
%21: i64[2] = mod_floor(%17, %20)
%22: i64[2] = full(; dtype=i64, shape=[{2}], value=0)
%23: f32[5, 2, 4, 3] = scatter(%0, %22, %19, %21, %2; dims=[1, 0, 2], mode="set")
%9: f32[5, 1, 4, 3] = slice(%23; limits=[{5}, {2}, {4}, {3}], starts=[{0}, {1}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%10: f32[5, 4, 3] = reshape(%9; shape=[{5}, {4}, {3}])
%13: f32[5, 4, 3] = scatter(%10, %11, %12; dims=[0], mode="set")
%14: f32[5, 1, 4, 3] = reshape(%13; shape=[{5}, {1}, {4}, {3}])
%15: f32[5, 1, 4, 3] = slice(%23; limits=[{5}, {1}, {4}, {3}], starts=[{0}, {0}, {0}, {0}], steps=[{1}, {1}, {1}, {1}])
%24: i32[2] = full(; dtype=i32, shape=[{2}], value=1)
%25: f32[5, 2, 4, 3] = scatter(%23, %24, %11, %12; dims=[1, 0], mode="set")
return %25: f32[5, 2, 4, 3]@[24, 12, 3, 1] into %0
""",
    )


def sorted_inputs(text: str) -> str:
    """The graph with its inputs first."""
    head, *lines = text.splitlines()
    lines.sort(key=lambda line: " = input " not in line)
    return "\n".join([head, *lines, ""])


@pytest.mark.parametrize("text", [TOKENS, sorted_inputs(SEVERAL), MIDDLE, sorted_inputs(BOTH)])
def test_scatters_store_the_same_elements_in_place(text: str) -> None:
    graph = parse_graph(text)
    rng = np.random.default_rng(0)
    arrays = []
    for source in graph.inputs:
        shape = tuple(extent.as_int() for extent in source.kind.shape)
        if source.kind.dtype.is_float:
            arrays.append(rng.standard_normal(shape).astype(np.float32))
        else:  # from both ends, no index twice
            numbers = np.arange(np.prod(shape)) * 2 - 3
            arrays.append(
                numbers.reshape(shape).astype(source.kind.dtype.value.replace("i", "int"))
            )
    changed = scatter_into_inputs(graph)
    assert changed is not graph
    verify_graph(changed)
    program = optimize(graph, target_facts("cuda:sm_90a")).program
    expected = run_graph(graph, arrays)
    for results in (run_graph(changed, arrays), run_program(program, arrays)):
        for found, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert not any("copy" in kernel.name for kernel in program.kernels)
    assert program.plan.arena_bytes.as_int() == 0


@pytest.mark.parametrize("slot", [-21, 20, 1000, -1000])
def test_an_index_outside_stays_outside(slot: int) -> None:
    graph = scatter_into_inputs(parse_graph(TOKENS))
    cache, rows = np.zeros((5, 4, 2, 3), np.float32), np.ones((2, 6), np.float32)
    with pytest.raises(IndexError):
        run_graph(graph, [cache, np.array([0, slot], np.int32), rows])


def test_other_scatters_stay() -> None:
    not_updated = TOKENS.replace(" into %0", "")
    computed = TOKENS.replace("reshape(%0;", "reshape(%7;").replace(
        "%3: f32", "%7: f32[5, 4, 2, 3] = neg(%0)\n%3: f32"
    )
    joined = re.sub(r"\[20, 6\]", "[10, 12]", TOKENS).replace("[{20}, {6}]", "[{10}, {12}]")
    joined = joined.replace("f32[2, 6]@[6, 1]", "f32[2, 10]@[10, 1]").replace(
        "dims=[0]", "dims=[1]"
    )
    joined = joined.replace("[10, 12]@[6, 1]", "[10, 12]@[12, 1]")
    for text in (not_updated, computed, joined):
        graph = parse_graph(text)
        verify_graph(graph)
        assert scatter_into_inputs(graph) is graph


def test_slices_that_are_not_the_rest_of_the_input_stay() -> None:
    rest = "%7: f32[5, 1, 4, 3] = slice(%0; limits=[{5}, {2}, {4}, {3}], starts=[{0}, {1},"
    both = sorted_inputs(BOTH)
    assert both.count(rest) == 1
    of_another = both.replace(rest, rest.replace("%0", "%17")).replace(
        "%7: f32", "%17: f32[5, 2, 4, 3] = neg(%0)\n%7: f32"
    )
    of_what_is_written = both.replace(rest, rest.replace("{1}", "{0}").replace("{2}", "{1}"))
    for text in (of_another, of_what_is_written):
        graph = parse_graph(text)
        verify_graph(graph)
        assert scatter_into_inputs(graph) is graph


def test_axes_behind_the_first_one_must_not_vary() -> None:
    varying = (
        TOKENS.replace("graph prims 1\n", "graph prims 1\nsize s0 from 2\nsize s1 from 2\n")
        .replace("[5, 4, 2, 3]@[24, 6, 3, 1]", "[s0, s1, 2, 3]@[6*s1, 6, 3, 1]")
        .replace("[5, 4, 2, 3]", "[s0, s1, 2, 3]")
        .replace("[{5}, {4}, {2}, {3}]", "[{s0}, {s1}, {2}, {3}]")
        .replace("[20, 6]", "[s0*s1, 6]")
        .replace("{20}", "{s0*s1}")
    )
    graph = parse_graph(varying)
    verify_graph(graph)
    assert scatter_into_inputs(graph) is graph
    pages = parse_graph(
        varying.replace("s1", "4").replace("size 4 from 2\n", "").replace("6*4", "24")
    )
    verify_graph(pages)
    assert scatter_into_inputs(pages) is not pages
