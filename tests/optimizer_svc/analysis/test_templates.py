"""Names of template kernels in a graph: the optimizer alone may use them."""

from __future__ import annotations

import pytest

from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.check_graph import check_client_graph
from kernelfarm.ir.graph_ir import Ref
from optimizer_svc.analysis import templates
from tests.support.captured_graphs import one_node_graph
from tests.support.small_graphs import tensor

NAMES = [value for value in vars(templates).values() if str(value).startswith("template.")]


def test_no_client_s_graph_may_name_a_template_kernel() -> None:
    assert templates.NIBBLE_PRODUCT in NAMES
    for name in NAMES:
        graph = one_node_graph(name, [tensor(4)], [Ref(0)], tensor(4))
        with pytest.raises(InvalidGraphError, match=f"node 0 \\({name}\\): unknown operator"):
            check_client_graph(graph)
