"""The output of `explain` for a whole model: every captured node, step and kernel boundary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from examples.real_inputs import llama
from kernelfarm.client.diagnostics.stages import of_pt2
from kernelfarm.ir.text import parse_graph

_NODE = re.compile(r"^node (\d+) (\S+): (decomposed|folded|extern|removed) \((.+)\)$", re.M)
_STEP = re.compile(r"^step (\d+): (kernel|extern) (\S+?):? (.+)$", re.M)
_BOUNDARY = re.compile(r"^not fused: steps (\d+) and (\d+): (.+)$", re.M)


@pytest.fixture(scope="module")
def stages(farm, tmp_path_factory) -> Iterator[dict[tuple[str, str], str]]:
    """A Llama of two layers: texts by kernel (empty: the program's) and stage."""
    model = llama()
    path = tmp_path_factory.mktemp("llama") / "llama.pt2"
    torch.export.save(torch.export.export(model.model, model.args), path)
    found = of_pt2(path, None, farm.endpoint)
    reference = {"aten", "report", "guards", "kernel", "llir"}
    return {(s.kernel, s.stage): s.text() for s in found if s.stage in reference}


def test_every_captured_node_has_an_outcome_and_a_reason(stages):
    nodes = parse_graph(stages["", "aten"]).nodes
    reported = _NODE.findall(stages["", "report"])
    assert [(int(number), op) for number, op, *_ in reported] == [
        (number, node.op) for number, node in enumerate(nodes)
    ]
    assert {outcome for _, _, outcome, _ in reported} == {
        "decomposed",
        "folded",
        "extern",
        "removed",
    }


def test_every_step_names_the_operators_that_it_runs(stages):
    nodes = parse_graph(stages["", "aten"]).nodes
    steps = _STEP.findall(stages["", "report"])
    assert [int(number) for number, *_ in steps] == list(range(len(steps)))
    for _, kind, name, detail in steps:
        if kind == "extern":
            number = re.fullmatch(r"\(node (\d+)\)", detail)
            assert number is not None, detail
            assert nodes[int(number[1])].op == name
            continue
        named = re.findall(r"(\S+) \((\d+)\)", detail)
        assert named, detail
        assert all(nodes[int(n)].op.removesuffix(".default") == op for op, n in named), detail


def test_neighbouring_kernels_have_a_reason_why_they_are_two(stages):
    report = stages["", "report"]
    kernels = [int(number) for number, kind, *_ in _STEP.findall(report) if kind == "kernel"]
    reported = {(int(first), int(second)) for first, second, _ in _BOUNDARY.findall(report)}
    assert len(kernels) > 5
    assert set(pairwise(kernels)) <= reported


def test_every_kernel_states_its_guards_and_its_operators(stages):
    kernels = {kernel for kernel, stage in stages if stage == "kernel"}
    assert len(kernels) > 5
    for kernel in kernels:
        assert stages[kernel, "guards"].splitlines()[-1] == "general: always"
        named = re.findall(r"^# (\S+) <- captured node \d+: (.+)$", stages[kernel, "kernel"], re.M)
        assert named, kernel
        assert all(f"; {op} <- captured node" in stages[kernel, "llir"] for op, _ in named)
