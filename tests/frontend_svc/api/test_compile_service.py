"""A captured graph through every service, over real sockets."""

from __future__ import annotations

import hashlib

from kernelfarm.targets import all_targets
from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.calls import compile_at, read_blobs, stub_of
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.small_graphs import CPU, h_request


def test_h_compiles_to_at_most_two_kernels(farm: Farm) -> None:
    program = compile_at(farm.endpoint, h_request(64, 128)).program
    assert program.target == CPU
    assert 1 <= len(program.plan.kernels) <= 2
    assert len(program.plan.outputs) == 1
    keys = {artifact.key for artifact in program.artifacts}
    assert keys == {kernel.key for kernel in program.plan.kernels}


def test_the_stages_are_reported_in_order(farm: Farm) -> None:
    stages = [event.stage for event in compile_at(farm.endpoint, h_request(65, 128)).stages]
    firsts = list(dict.fromkeys(stages))
    assert firsts == ["import", "lookup", "decompose", "optimize", "codegen", "publish"]


def test_names_and_request_ids_do_not_change_the_key(farm: Farm) -> None:
    plain = h_request(66, 128)
    renamed = h_request(66, 128)
    renamed.request_id = "another"
    renamed.graph.inputs[0].name = "renamed"
    keys = {compile_at(farm.endpoint, request).program.key for request in (plain, renamed)}
    assert len(keys) == 1


def test_options_are_part_of_the_key(farm: Farm) -> None:
    plain = h_request(66, 128)
    deterministic = h_request(66, 128)
    deterministic.options.deterministic = True
    keys = {compile_at(farm.endpoint, request).program.key for request in (plain, deterministic)}
    assert len(keys) == 2


def test_one_request_compiles_for_several_targets(farm: Farm) -> None:
    targets = [name for name in all_targets() if name.startswith("cpu:")]
    programs = compile_at(farm.endpoint, h_request(68, 128, *targets)).programs
    assert sorted(program.target for program in programs) == sorted(targets)


def test_a_program_is_found_by_key(farm: Farm) -> None:
    compiled = compile_at(farm.endpoint, h_request(66, 128)).program
    with stub_of(farm.endpoint) as stub:
        found = stub.Lookup(api.LookupRequest(key=compiled.key), timeout=TIMEOUT_S).program
    assert found.outcome == api.CACHE_OUTCOME_HIT
    assert found.plan == compiled.plan


def test_every_stage_of_a_program_can_be_read(farm: Farm) -> None:
    program = compile_at(farm.endpoint, h_request(66, 128)).program
    stages = [*program.stages, *(s for artifact in program.artifacts for s in artifact.stages)]
    contents = read_blobs(farm.endpoint, *(stage.blob.sha256 for stage in stages))
    for stage, content in zip(stages, contents, strict=True):
        assert hashlib.sha256(content).digest() == stage.blob.sha256, stage.name
        assert len(content) == stage.blob.size_bytes
    assert {"aten", "prims", "loops", "plan", "report"} <= {s.name for s in program.stages}


def test_capabilities_name_the_toolchain_of_the_running_workers(farm: Farm) -> None:
    with stub_of(farm.endpoint) as stub:
        capabilities = stub.GetCapabilities(api.GetCapabilitiesRequest(), timeout=TIMEOUT_S)
    by_target = {entry.target: entry for entry in capabilities.targets}
    assert set(by_target) == set(all_targets())
    assert by_target[CPU].toolchain.startswith("cpu@")
    assert capabilities.min_abi_version <= 1 <= capabilities.max_abi_version
