"""Nodes without a reader go. Extern steps stay, because they may have effects."""

from __future__ import annotations

import pytest

from tests.support.goldens import assert_golden
from tests.support.optimizer_passes import before_and_after

UNREAD_CHAIN = """\
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3] = exp(%0)
%2: f32[3] = neg(%1)
%3: f32[3] = sin(%0)
return %3: f32[3]@[1]
"""


@pytest.mark.golden
def test_a_chain_that_no_output_needs_goes() -> None:
    assert_golden(
        before_and_after("eliminate-dead-nodes", UNREAD_CHAIN),
        """\
-- before eliminate-dead-nodes: graph
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3] = exp(%0)
%2: f32[3] = neg(%1)
%3: f32[3] = sin(%0)
return %3: f32[3]@[1]
-- after: graph
graph prims 1
%0: f32[3]@[1] = input "x"
%3: f32[3] = sin(%0)
return %3: f32[3]@[1]
""",
    )


UNREAD_EXTERN = """\
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3] = exp(%0)
%2: i64[2]@[1] = extern(%1; is_contraction=false, node=0, op="aten.multinomial.default")
%3: f32[3] = sin(%0)
return %3: f32[3]@[1]
"""


@pytest.mark.golden
def test_an_extern_step_without_a_reader_stays_with_its_operand() -> None:
    assert_golden(
        before_and_after("eliminate-dead-nodes", UNREAD_EXTERN),
        """\
-- before eliminate-dead-nodes: graph
graph prims 1
%0: f32[3]@[1] = input "x"
%1: f32[3] = exp(%0)
%2: i64[2]@[1] = extern(%1; is_contraction=false, node=0, op="aten.multinomial.default")
%3: f32[3] = sin(%0)
return %3: f32[3]@[1]
-- after: graph
the same
""",
    )
