"""What a job captures of a model, for which target."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.settings import client_settings
from kernelfarm.client.warming.capture_case import CaptureRequest, capture_case
from kernelfarm.client.warming.cases import cases_of
from kernelfarm.client.warming.manifest import parse_manifest
from kernelfarm.ir.graph_ir import TensorType
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire import graph_from_proto

MANIFEST = """
format: 1
targets: [{targets}]
models:
  - name: images
    entry: tests.support.warmed_models:images
    train: true
"""


def images_of_gradients(folder: Path, targets: str) -> list[TensorType]:
    """The images of eight channels that the gradients of a captured training step read."""
    manifest = parse_manifest(MANIFEST.format(targets=targets), "m.yaml")
    (case,) = cases_of(manifest)
    access = FarmAccess(client_settings(endpoint="127.0.0.1:9", disk_cache_bytes=0))
    target = manifest.traced_target_of(case.model)
    try:
        found = capture_case(case, access, folder, CaptureRequest(CompileOptions(), target=target))
    finally:
        access.client.close()
    _, backward = (graph_from_proto(graph_pb2.Graph.FromString(one.graph)) for one in found.graphs)
    kinds = [source.kind for source in backward.inputs[:-1]]  # the last one is a gradient
    return [
        kind
        for kind in kinds
        if isinstance(kind, TensorType) and kind.rank == 4 and kind.shape[0].constant == 2
        if kind.shape[1].constant == 8
    ]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ('"cuda:sm_90a", "cuda:sm_80"', True),
        ('"cuda:sm_90a", "cpu:x86-64-v3"', False),  # traced for the job's device, a processor
        ('"cpu:x86-64-v3"', False),
    ],
)
def test_training_graphs_are_traced_for_the_vendor_of_all_targets(tmp_path, targets, expected):
    found = images_of_gradients(tmp_path, targets)
    assert found
    assert all((str(kind.strides[1]) == "1") is expected for kind in found)
