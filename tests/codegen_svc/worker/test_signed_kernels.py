"""Signatures of workers, untrusted workers, and invalidations during a compilation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernelfarm.cache import KernelCache, Space
from kernelfarm.errors import UnavailableError
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from kernelfarm.signing import CacheAddress, check_content, check_manifest
from kernelfarm.signing.key_files import PUBLIC_KEYS, make_keys, read_keyring
from kernelfarm.wire.manifest import manifest_from_proto
from tests.support.codegen_calls import artifacts_of, build
from tests.support.codegen_processes import CodegenFarm
from tests.support.fresh_kernels import fresh_kernel


async def test_a_worker_signs_each_variant_for_its_key(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    (built,) = (await build(stub, fresh_kernel("plain_signed"))).values()
    keyring = read_keyring(codegen.folder / "keys" / PUBLIC_KEYS)
    assert len(built.signed) == 2
    for signed, artifact in zip(built.signed, artifacts_of(built), strict=True):
        manifest = manifest_from_proto(signed.manifest)
        check_manifest(manifest, CacheAddress("default", Space.KERNELS, artifact.key), keyring, 0)
        check_content(manifest, signed.content)
        assert f"toolchain:{artifact.toolchain}" in manifest.tags


async def test_a_kernel_invalidated_during_its_compilation_is_compiled_again(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    making = asyncio.create_task(build(stub, fresh_kernel("gated_stale")))
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_stale")
    async with KernelCache(codegen.cache.url, space=Space.KERNELS) as cache:
        stale = (await cache.stats()).get("stale_epochs", 0)
        epoch = await cache.epochs.invalidate(["driver:echo"])
        codegen.release_job("gated_stale")
        (built,) = (await making).values()
        assert (await cache.stats())["stale_epochs"] == stale + 1
    assert codegen.compilations("gated_stale") == 2
    assert manifest_from_proto(built.signed[0].manifest).epoch == epoch.number


async def test_an_artifact_signed_by_an_unknown_key_is_refused_and_counted(
    codegen: CodegenFarm, tmp_path: Path
) -> None:
    make_keys(tmp_path)
    others = str(tmp_path / PUBLIC_KEYS)
    await asyncio.to_thread(codegen.start_service, "codegen", "edge3", trusted_keys_file=others)
    before = codegen.counters().get("k.untrusted", 0)
    async with open_channel(f"unix:{codegen.folder}/edge3") as channel:
        with pytest.raises(UnavailableError, match="key that is not trusted"):
            await build(CodegenServiceStub(channel), fresh_kernel("plain_unknown"))
    refused = codegen.counters()["k.untrusted"] - before
    assert refused == 2 * codegen.compilations("plain_unknown")
