"""Programs by tier: memory, disk, farm; refused programs; invalidated programs."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.disk.files import read_sealed, write_sealed
from kernelfarm.client.disk.tier import DiskEntry, read_entry
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.farm.manifest_verifier import (
    ManifestVerifier,
    UnsignedFarmWarning,
    is_on_this_machine,
)
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import (
    ExpiredManifestError,
    ForgedManifestError,
    IntegrityError,
    ManifestMismatchError,
    PoisonedBlobError,
    UnavailableError,
    UntrustedKeyError,
)
from kernelfarm.signing import CacheAddress, Space, new_signer
from kernelfarm.signing.key_files import (
    PUBLIC_KEYS,
    keyring_to_text,
    read_keyring,
    write_keyring,
)
from kernelfarm.wire.manifest import manifest_from_bytes, manifest_to_bytes
from tests.support.client_process import new_process
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.tampering_proxy import Change, TamperingFarm
from tests.support.traced_graphs import traced_one

X = torch.randn(5, 7)
_numbers = iter(range(1000))


@pytest.fixture
def graph() -> CapturedGraph:
    """A graph that no other test has: its constant is its own."""
    number = next(_numbers) + 0.125
    return traced_one(lambda a: (a * number).sin().sum(0), X)


@pytest.fixture
def meddler(farm: Farm) -> Iterator[tuple[TamperingFarm, str]]:
    meddling = TamperingFarm(farm.endpoint)
    yield meddling, meddling.start()
    meddling.stop()


def entries(folder: Path) -> list[DiskEntry]:
    return [read_entry(path) for path in sorted(folder.glob("programs/*/*/*/*.json"))]


def counted() -> dict[str, int]:
    return {name: times for name, times in counters.snapshot().items() if times}


def test_the_next_process_finds_its_program_on_disk(farm: Farm, graph, tmp_path: Path) -> None:
    first = new_process(farm.endpoint, tmp_path).run(graph, X)
    assert counted() == {"disk.misses": 1, "farm.misses": 1}
    second = new_process(farm.endpoint, tmp_path)
    torch.testing.assert_close(second.run(graph, X), first, rtol=0, atol=0)
    assert counted() == {"disk.hits": 1}
    second.run(graph, X)
    assert counted() == {"disk.hits": 1, "memory.hits": 1}


def test_without_a_limit_in_bytes_nothing_is_kept(farm: Farm, graph, tmp_path: Path) -> None:
    new_process(farm.endpoint, tmp_path, disk_cache_bytes=0).run(graph, X)
    new_process(farm.endpoint, tmp_path, disk_cache_bytes=0).run(graph, X)
    assert counted() == {"farm.hits": 1}
    assert not list(tmp_path.iterdir())


def test_what_is_on_disk_runs_without_the_farm(meddler, graph, tmp_path: Path) -> None:
    meddling, endpoint = meddler
    first = new_process(endpoint, tmp_path).run(graph, X)
    meddling.stop()
    offline = new_process(endpoint, tmp_path)
    torch.testing.assert_close(offline.run(graph, X), first, rtol=0, atol=0)
    assert counted() == {"disk.hits": 1}
    meddling.start()


def test_offline_a_program_is_refused_once_its_manifest_ends(meddler, graph, tmp_path) -> None:
    meddling, endpoint = meddler
    meddling.changes = [meddling.signed()]
    new_process(endpoint, tmp_path).run(graph, X)
    damage(tmp_path, partial(age, meddling.signed(not_after_s=int(time.time()) - 1)))
    meddling.stop()
    with pytest.raises(UnavailableError, match=f"{endpoint}.*on disk.*expired at"):
        new_process(endpoint, tmp_path).run(graph, X)
    assert counted() == {"disk.misses": 1, "refused.disk.expired_manifest": 1}
    # The farm answers again: it gives a new one.
    meddling.start()
    new_process(endpoint, tmp_path).run(graph, X)
    assert counted() == {
        "disk.misses": 1, "farm.hits": 1, "refused.disk.expired_manifest": 1,
    }  # fmt: skip
    new_process(endpoint, tmp_path).run(graph, X)
    assert counted() == {"disk.hits": 1}


def bad_manifests(meddling: TamperingFarm) -> dict[type[IntegrityError], object]:
    unknown = new_signer(Space.PROGRAMS)
    return {
        ForgedManifestError: lambda m: replace(m, epoch=m.epoch + 1000),
        UntrustedKeyError: unknown.sign,
        ManifestMismatchError: meddling.signed(key=b"\1" * 32),
        ExpiredManifestError: meddling.signed(not_after_s=int(time.time()) - 10),
    }


KINDS = [ForgedManifestError, UntrustedKeyError, ManifestMismatchError, ExpiredManifestError]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_answer_is_refused_by_its_own_name_and_asked_for_again(
    kind, meddler, graph, tmp_path: Path
) -> None:
    meddling, endpoint = meddler
    bad = bad_manifests(meddling)[kind]
    meddling.changes = [bad]
    process = new_process(endpoint, tmp_path)
    process.run(graph, X)
    name = f"refused.farm.{kind.reason.lower()}"
    assert counters.snapshot()[name] == 1 and meddling.requests == 2
    meddling.changes = [bad, bad]
    with pytest.raises(kind):
        new_process(endpoint, tmp_path / "other").run(graph, X)
    assert counters.snapshot()[name] == 2
    assert entries(tmp_path / "other") == []


def test_a_replayed_manifest_of_another_program_is_refused(meddler, graph, tmp_path) -> None:
    meddling, endpoint = meddler
    seen = []
    meddling.changes = [lambda m: seen.append(m) or m]
    other = traced_one(lambda a: (a * 3.5).cos(), X)
    new_process(endpoint, tmp_path).run(other, X)
    meddling.changes = [lambda m: seen[0]] * 2
    with pytest.raises(ManifestMismatchError):
        new_process(endpoint, tmp_path).run(graph, X)
    assert counters.snapshot()["refused.farm.manifest_mismatch"] == 2


def test_a_program_of_another_namespace_is_refused(farm: Farm, graph, tmp_path: Path) -> None:
    with pytest.raises(ManifestMismatchError, match="'theirs'"):
        new_process(farm.endpoint, tmp_path, namespace="theirs").run(graph, X)


def test_a_poisoned_blob_is_refused_and_read_again(meddler, graph, tmp_path: Path) -> None:
    meddling, endpoint = meddler
    meddling.poisoned_reads = 1
    new_process(endpoint, tmp_path).run(graph, X)
    assert counters.snapshot()["refused.farm.poisoned_blob"] == 1
    meddling.poisoned_reads = 2
    with pytest.raises(PoisonedBlobError):
        new_process(endpoint, tmp_path / "other").run(graph, X)


def damage(folder: Path, change) -> None:
    (path,) = folder.glob("programs/*/*/*/*.json")
    stored = json.loads(read_sealed(path))
    change(path, stored)


def age(change: Change, path: Path, stored) -> None:
    """What lies there after some time: it was signed with that end."""
    manifest = manifest_from_bytes(base64.b64decode(stored["manifest"]))
    stored["manifest"] = base64.b64encode(manifest_to_bytes(change(manifest))).decode()
    write_sealed(path, json.dumps(stored).encode())


def forge(path: Path, stored) -> None:
    age(lambda m: replace(m, not_after_s=m.not_after_s + 10_000_000), path, stored)


def cut(path: Path, stored) -> None:
    write_sealed(path, json.dumps(stored).encode()[:-40])


def poison(path: Path, stored) -> None:
    blob = path.parents[4] / "blobs" / stored["blobs"][-1][:2] / stored["blobs"][-1]
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")


def make_hole(path: Path, stored) -> None:
    (path.parents[4] / "blobs" / stored["blobs"][-1][:2] / stored["blobs"][-1]).unlink()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (forge, "refused.disk.forged_manifest"),
        (cut, "refused.disk.malformed_message"),
        (poison, "refused.disk.poisoned_blob"),
        (make_hole, "disk.missing_blobs"),
    ],
)
def test_a_corrupt_disk_is_counted_cleaned_and_filled_again(
    change, name, farm: Farm, graph, tmp_path: Path
) -> None:
    expected = new_process(farm.endpoint, tmp_path).run(graph, X)
    damage(tmp_path, change)
    again = new_process(farm.endpoint, tmp_path).run(graph, X)
    torch.testing.assert_close(again, expected, rtol=0, atol=0)
    seen = counted()
    assert seen.pop(name) == 1
    assert {"disk.misses": 1, "farm.hits": 1}.items() <= seen.items()
    new_process(farm.endpoint, tmp_path).run(graph, X)
    assert counted() == {"disk.hits": 1}


def test_an_entry_that_was_copied_under_another_key_is_refused(
    farm: Farm, graph, tmp_path: Path
) -> None:
    other = traced_one(lambda a: (a * 9.5).cos(), X)
    process = new_process(farm.endpoint, tmp_path)
    process.run(other, X)
    key = process.program(graph).manifest.key
    expected = process.run(graph, X)
    (theirs,) = (e for e in entries(tmp_path) if e.manifest.key != key)
    (ours,) = (e for e in entries(tmp_path) if e.manifest.key == key)
    shutil.copy(theirs.path, ours.path)
    again = new_process(farm.endpoint, tmp_path).run(graph, X)
    torch.testing.assert_close(again, expected, rtol=0, atol=0)
    assert counters.snapshot()["refused.disk.manifest_mismatch"] == 1


def test_pinned_keys_are_trusted_and_rotated_by_overlap(meddler, graph, tmp_path, farm) -> None:
    meddling, endpoint = meddler
    pinned = tmp_path / "public.json"
    write_keyring(pinned, [new_signer(Space.PROGRAMS).trusted])
    folder, settings = tmp_path / "cache", {"trusted_keys_file": pinned}
    with pytest.raises(UntrustedKeyError):
        new_process(endpoint, folder, **settings).run(graph, X)
    farms = read_keyring(farm.data_dir / "keys" / PUBLIC_KEYS).keys
    write_keyring(pinned, farms)
    process = new_process(endpoint, folder, **settings)
    process.run(graph, X)
    # The farm's key changes while this process runs; its file of keys was changed before.
    write_keyring(pinned, [*farms, meddling.key.trusted])
    meddling.changes = [meddling.signed()]
    process.run(traced_one(lambda a: (a * 7.75).cos(), X), X)
    assert "refused.farm.untrusted_key" not in counted()


def test_a_running_process_no_longer_trusts_a_removed_key(
    farm: Farm, graph, tmp_path: Path
) -> None:
    manifest = new_process(farm.endpoint, tmp_path / "cache").program(graph).manifest
    address = CacheAddress(manifest.namespace, manifest.space, manifest.key)
    pinned = tmp_path / "public.json"
    write_keyring(pinned, read_keyring(farm.data_dir / "keys" / PUBLIC_KEYS).keys)
    trust = ManifestVerifier(client_settings(trusted_keys_file=pinned), lambda: None)
    trust.check(manifest, address)
    write_keyring(pinned, [new_signer(Space.PROGRAMS).trusted])
    with pytest.raises(UntrustedKeyError):
        trust.check(manifest, address)


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_stored_keys_that_others_could_have_written_are_not_trusted(
    farm: Farm, graph, tmp_path: Path, mode: int
) -> None:
    manifest = new_process(farm.endpoint, tmp_path / "cache").program(graph).manifest
    address = CacheAddress(manifest.namespace, manifest.space, manifest.key)
    remembered, unknown = tmp_path / "keys.json", new_signer(Space.PROGRAMS)
    own = read_keyring(farm.data_dir / "keys" / PUBLIC_KEYS)
    write_sealed(remembered, keyring_to_text([unknown.trusted]).encode())
    forged = unknown.sign(manifest)
    ManifestVerifier(client_settings(), lambda: own, remembered).check(
        forged, address
    )  # it is ours
    remembered.chmod(mode)
    with pytest.raises(UntrustedKeyError):
        ManifestVerifier(client_settings(), lambda: own, remembered).check(forged, address)
    ManifestVerifier(client_settings(), lambda: None, remembered).check(
        manifest, address
    )  # the reported keys


def test_a_farm_elsewhere_is_refused_without_pinned_keys(farm: Farm, graph, tmp_path) -> None:
    manifest = new_process(farm.endpoint, tmp_path).program(graph).manifest
    address = CacheAddress(manifest.namespace, manifest.space, manifest.key)
    asked: list[str] = []
    trust = ManifestVerifier(
        client_settings(endpoint="farm.example:50051"), lambda: asked.append("keys")
    )
    with pytest.raises(UntrustedKeyError, match="KERNELFARM_TRUSTED_KEYS_FILE"):
        trust.check(manifest, address)
    assert not asked


def test_unix_sockets_and_loopback_addresses_are_of_this_machine() -> None:
    assert [
        is_on_this_machine(e) for e in ("localhost:1", "[::1]:1", "127.9.0.1:1", "unix:/a")
    ] == [True] * 4
    assert not any(map(is_on_this_machine, ("farm:50051", "10.0.0.1:50051", "dns:///farm:1")))


def test_an_unsigned_farm_is_accepted_only_if_the_settings_say_so(
    meddler, graph, tmp_path: Path
) -> None:
    meddling, endpoint = meddler
    unsigned = [lambda m: replace(m, key_id="", signature=b"")] * 3
    meddling.changes = unsigned[:2]
    with pytest.raises(UntrustedKeyError):
        new_process(endpoint, tmp_path).run(graph, X)
    meddling.changes = unsigned[:1]
    with pytest.warns(UnsignedFarmWarning, match="KERNELFARM_SIGNING=off"):
        new_process(endpoint, tmp_path, signing="off").run(graph, X)


@pytest.fixture
def admin(farm: Farm) -> Iterator[CacheAdmin]:
    with CacheAdmin(farm.endpoint) as opened:
        yield opened


def test_an_invalidation_empties_memory_and_disk(farm: Farm, admin, graph, tmp_path) -> None:
    process = new_process(farm.endpoint, tmp_path, model=f"mine@{next(_numbers)}")
    first = process.program(graph)
    (tag,) = (tag for tag in first.manifest.tags if tag.startswith("model:"))
    reported = admin.invalidate([tag])
    wait_until(lambda: not first.validity.is_valid, TIMEOUT_S, "word of the invalidation")
    second = process.program(graph)
    assert second.manifest.epoch >= reported.epoch
    assert counted() == {
        "disk.misses": 2, "disk.stale": 1, "farm.misses": 2, "memory.stale": 1,
    }  # fmt: skip
    assert [entry.manifest.epoch for entry in entries(tmp_path)] == [second.manifest.epoch]


def test_what_was_invalidated_while_no_process_ran_is_not_used(
    farm: Farm, admin, graph, tmp_path
) -> None:
    settings = {"model": f"mine@{next(_numbers)}"}
    first = new_process(farm.endpoint, tmp_path, **settings).program(graph)
    new_process(farm.endpoint, tmp_path, **settings).access.watch.close()
    admin.invalidate([f"model:{settings['model']}"])
    second = new_process(farm.endpoint, tmp_path, **settings).program(graph)
    assert second.manifest.epoch > first.manifest.epoch
    assert (counted()["disk.stale"], counted()["farm.misses"]) == (1, 1)


def test_an_entry_that_a_slow_process_writes_after_an_invalidation_is_not_used(
    farm: Farm, admin, graph, tmp_path
) -> None:
    settings = {"model": f"mine@{next(_numbers)}"}
    process = new_process(farm.endpoint, tmp_path, **settings)
    process.program(graph)
    (entry,) = entries(tmp_path)
    kept = entry.path.read_bytes()
    reported = admin.invalidate([f"model:{settings['model']}"])
    watch = process.access.watch
    wait_until(
        lambda: watch.invalidations and watch.invalidations.epoch >= reported.epoch,
        TIMEOUT_S,
        "the invalidation",
    )
    entry.path.write_bytes(kept)
    new_process(farm.endpoint, tmp_path, **settings).program(graph)
    assert (counted()["disk.stale"], counted()["farm.misses"]) == (1, 1)


def test_a_farm_that_lost_its_past_makes_the_disk_cold(farm: Farm, graph, tmp_path: Path) -> None:
    new_process(farm.endpoint, tmp_path).run(graph, X)
    (state,) = (p for p in tmp_path.glob("farms/*.json") if "keys" not in p.name)
    stored = json.loads(read_sealed(state))
    (folder,) = (tmp_path / "programs").iterdir()
    folder.rename(folder.with_name("0" * 32))
    write_sealed(state, json.dumps({**stored, "incarnation": "0" * 32}).encode())
    new_process(farm.endpoint, tmp_path).run(graph, X)
    assert counted() == {"disk.misses": 1, "farm.hits": 1}
