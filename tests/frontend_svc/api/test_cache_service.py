"""The cache over gRPC: tiers, signatures, invalidation, watching, explanations, usage, sweeps."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin, WatchEvent
from kernelfarm.errors import CallerError, NotFoundError
from kernelfarm.service.channels import channel_options
from kernelfarm.signing import CacheAddress, Keyring, Space, check_content, check_manifest
from kernelfarm.signing.key_files import PUBLIC_KEYS, read_keyring
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceStub
from kernelfarm.wire.manifest import key_from_proto, manifest_from_proto
from kernelfarm.wire.status import error_from_rpc
from tests.support.calls import compile_at, stub_of
from tests.support.command_line import run_command
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.small_graphs import h_request


@pytest.fixture
def admin(farm: Farm) -> Iterator[CacheAdmin]:
    with CacheAdmin(farm.endpoint) as opened:
        yield opened


def request_of(rows: int, model: str = "", **changes: object) -> api.CompileRequest:
    request = h_request(rows, 24)
    request.model = model
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def compiled(farm: Farm, request: api.CompileRequest) -> api.ProgramResult:
    return compile_at(farm.endpoint, request).program


def test_a_second_hit_comes_from_the_memory_tier(farm: Farm) -> None:
    first = compiled(farm, request_of(401))
    assert (first.outcome, first.tier) == (api.CACHE_OUTCOME_MISS, api.CACHE_TIER_UNSPECIFIED)
    assert first.codegen_jobs >= 1
    wait_until(
        lambda: compiled(farm, request_of(401)).tier == api.CACHE_TIER_GATEWAY,
        TIMEOUT_S,
        "a gateway hit",
    )
    hit = compiled(farm, request_of(401))
    assert (hit.outcome, hit.codegen_jobs) == (api.CACHE_OUTCOME_HIT, 0)
    assert (hit.plan, list(hit.artifacts)) == (first.plan, list(first.artifacts))


def test_a_signed_program_is_verified_with_the_pinned_keys(farm: Farm) -> None:
    plain = compiled(farm, request_of(402))
    signed = compiled(farm, request_of(402, wants_signed=True))
    assert not signed.HasField("plan") and not signed.artifacts
    pinned = read_keyring(farm.data_dir / "keys" / PUBLIC_KEYS)
    manifest = manifest_from_proto(signed.signed.manifest)
    address = CacheAddress("default", Space.PROGRAMS, plain.key)
    check_manifest(manifest, address, pinned, time.time())
    check_content(manifest, signed.signed.content)
    content = api.ProgramResult.FromString(signed.signed.content)
    assert (content.plan, content.key, content.target) == (plain.plan, plain.key, plain.target)
    named = {stage.blob.sha256 for a in content.artifacts for stage in a.stages}
    assert named <= {blob.sha256 for blob in manifest.blobs}
    assert {tag.partition(":")[0] for tag in manifest.tags} == {
        "toolchain", "pass", "op", "driver", "artifact",
    }  # fmt: skip
    assert 23 * 3600 < manifest.not_after_s - time.time() <= 24 * 3600
    with stub_of(farm.endpoint) as stub:
        lookup = stub.Lookup(api.LookupRequest(key=plain.key, wants_signed=True))
    assert lookup.program.signed.content == signed.signed.content


def test_the_farm_returns_its_public_keys(farm: Farm) -> None:
    with stub_of(farm.endpoint) as stub:
        reported = stub.GetCapabilities(api.GetCapabilitiesRequest())
    assert reported.is_signed and reported.namespace == "default"
    keyring = Keyring(key_from_proto(key) for key in reported.public_keys)
    assert keyring.keys == read_keyring(farm.data_dir / "keys" / PUBLIC_KEYS).keys
    assert {key.space for key in keyring.keys} == set(Space)


def test_an_invalidation_by_every_tag_causes_a_new_compilation(
    farm: Farm, admin: CacheAdmin
) -> None:
    request = request_of(403, "bert@1", wants_signed=True)
    first = manifest_from_proto(compiled(farm, request).signed.manifest)
    kinds = {tag.partition(":")[0]: tag for tag in first.tags}
    assert kinds["model"] == "model:bert@1"
    for tag in kinds.values():
        wait_until(
            lambda: compiled(farm, request).tier == api.CACHE_TIER_GATEWAY,
            TIMEOUT_S,
            "a gateway hit",
        )
        began = admin.invalidate([tag])
        # No gateway serves the program any more, so the test need not wait.
        again = compiled(farm, request)
        assert again.outcome == api.CACHE_OUTCOME_MISS, tag
        assert began.gateways == 1
        assert manifest_from_proto(again.signed.manifest).epoch >= began.epoch


def test_another_models_invalidation_leaves_a_shared_program_alone(
    farm: Farm, admin: CacheAdmin
) -> None:
    compiled(farm, request_of(404))
    admin.invalidate(["model:gpt@9"])
    assert compiled(farm, request_of(404)).outcome == api.CACHE_OUTCOME_HIT
    assert compiled(farm, request_of(404, "gpt@9")).outcome == api.CACHE_OUTCOME_MISS
    assert compiled(farm, request_of(404, "gpt@9")).outcome == api.CACHE_OUTCOME_HIT


def test_a_dry_run_counts_and_changes_nothing(farm: Farm, admin: CacheAdmin) -> None:
    compiled(farm, request_of(405, "counted@1"))
    reported = admin.invalidate(["model:counted@1"], dry_run=True)
    assert (reported.programs, reported.kernels, reported.gateways) == (1, 0, 0)
    assert compiled(farm, request_of(405, "counted@1")).outcome == api.CACHE_OUTCOME_HIT


@pytest.mark.parametrize("tags", [[], ["op"], ["op:a b"], ["op:a"] * 65])
def test_tags_outside_of_the_grammar_are_refused(admin: CacheAdmin, tags: list[str]) -> None:
    with pytest.raises(CallerError):
        admin.invalidate(tags)


def test_a_watcher_receives_invalidations_and_resumes(farm: Farm, admin: CacheAdmin) -> None:
    received: list[WatchEvent] = []
    is_listening = threading.Event()

    def listen() -> None:
        with CacheAdmin(farm.endpoint) as watcher:
            for event in watcher.watch():
                is_listening.set()
                if event.tags:
                    received.append(event)
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    assert is_listening.wait(TIMEOUT_S)
    first = admin.invalidate(["op:received", "op:too"])
    thread.join(TIMEOUT_S)
    (event,) = received
    assert (event.tags, event.epoch) == (("op:received", "op:too"), first.epoch)
    admin.invalidate(["op:missed"])
    missed = next(event for event in admin.watch(event.resume_token) if event.tags)
    assert (missed.tags, missed.epoch) == (("op:missed",), first.epoch + 1)


def test_a_token_of_another_incarnation_flushes_and_a_malformed_one_is_refused(
    admin: CacheAdmin,
) -> None:
    assert next(iter(admin.watch(f"{'0' * 32}:7"))).is_flush
    with pytest.raises(CallerError, match="resume token"):
        next(iter(admin.watch("nonsense")))


def explain(farm: Farm, request: api.CompileRequest) -> cache_api.ExplainMissResponse:
    with grpc.insecure_channel(farm.endpoint, options=channel_options()) as channel:
        try:
            return CacheServiceStub(channel).ExplainMiss(
                cache_api.ExplainMissRequest(
                    graph=request.graph,
                    target=request.targets[0],
                    options=request.options,
                    facts=request.facts,
                    model=request.model,
                ),
                timeout=TIMEOUT_S,
            )
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error


def parts_of(reported: cache_api.ExplainMissResponse) -> set[str]:
    return {difference.part for difference in reported.differences}


def test_a_miss_is_explained_by_the_part_of_the_key_that_differs(farm: Farm) -> None:
    request = request_of(406)
    key = compiled(farm, request).key
    assert explain(farm, request).reason == cache_api.MISS_REASON_NONE
    request.options.deterministic = True
    reported = explain(farm, request)
    assert (reported.reason, reported.nearest_key) == (cache_api.MISS_REASON_KEY, key)
    assert parts_of(reported) == {"options"}
    other_target = request_of(406)
    other_target.targets[0] = "cpu:x86-64-v4"
    reported = explain(farm, other_target)
    assert [(d.requested, d.nearest) for d in reported.differences] == [
        ("cpu:x86-64-v4", request_of(406).targets[0])
    ]
    assert parts_of(explain(farm, request_of(499))) == {"graph"}


def test_a_miss_is_explained_by_the_tag_that_was_invalidated(farm: Farm, admin: CacheAdmin) -> None:
    request = request_of(407, "stale@1")
    key = compiled(farm, request).key
    admin.invalidate(["model:stale@1"])
    reported = explain(farm, request)
    assert (reported.reason, reported.nearest_key) == (cache_api.MISS_REASON_EPOCH, key)
    assert "model:stale@1" in reported.differences[0].nearest
    by_key = admin.explain_key(key)
    assert by_key.reason == cache_api.MISS_REASON_EPOCH
    nothing = admin.explain_key(b"\0" * 32)
    assert (nothing.reason, nothing.nearest_key) == (cache_api.MISS_REASON_KEY, b"")


def test_usage_has_what_a_sweep_counted_and_hits_by_tier(farm: Farm, admin: CacheAdmin) -> None:
    compiled(farm, request_of(408, "swept@1"))
    invalidations = admin.usage().invalidations
    admin.invalidate(["model:swept@1"])
    assert admin.usage().invalidations == invalidations + 1
    swept = admin.sweep()
    assert swept.dead_variants >= 1 and swept.entries > swept.dead_variants
    wait_until(
        lambda: compiled(farm, request_of(401)).tier == api.CACHE_TIER_GATEWAY,
        TIMEOUT_S,
        "a gateway hit",
    )
    wait_until(lambda: "gateway_hits" in counters(admin, 0), TIMEOUT_S, "counted gateway hits")
    reported = admin.usage()
    programs, kernels, _ = reported.spaces
    assert programs.space == manifest_pb2.CACHE_SPACE_PROGRAMS
    assert programs.entries > 0 and kernels.entries > 0 and reported.blobs > 0
    assert {"gateway_hits", "misses", "published"} <= set(programs.counters)


def counters(admin: CacheAdmin, space: int) -> dict[str, int]:
    return dict(admin.usage().spaces[space].counters)


def test_facts_for_which_no_guard_holds_get_the_general_variant(farm: Farm) -> None:
    request = request_of(409)
    request.facts.symbols["s0"] = 3
    request.facts.inputs.add(sizes=[409, 24], strides=[24, 1], alignment_bytes=64, dtype="f32")
    assert compiled(farm, request).outcome == api.CACHE_OUTCOME_MISS
    assert compiled(farm, request).outcome == api.CACHE_OUTCOME_HIT


def test_an_unknown_key_is_not_found_and_a_bad_model_refused(farm: Farm) -> None:
    with stub_of(farm.endpoint) as stub:
        for request, error in (
            (api.LookupRequest(key=b"\1" * 32), NotFoundError),
            (api.LookupRequest(key=b"\1" * 32, model="a b"), CallerError),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Lookup(request)
            assert isinstance(error_from_rpc(caught.value), error)


def test_operators_do_all_of_this_from_the_command_line(farm: Farm) -> None:
    at = ("--endpoint", farm.endpoint)
    key = compiled(farm, request_of(410, "shown@1")).key.hex()
    assert "is found" in run_command("explain-miss", key, *at)
    dry = run_command("invalidate", "model:shown@1", "--dry-run", *at)
    assert "would be stale: 1 programs, 0 kernels" in dry
    assert "1 gateways applied it" in run_command("invalidate", "model:shown@1", *at)
    explained = run_command("explain-miss", key, *at)
    assert "is not found: epoch" in explained and "model:shown@1" in explained
    assert "stale variants" in run_command("sweep", *at)
    assert "no similar entry exists" in run_command("explain-miss", "0" * 64, *at)
    usage = run_command("usage", *at)
    assert "published" in usage
    assert re.search(r"^invalidations [1-9]", usage, re.MULTILINE)
