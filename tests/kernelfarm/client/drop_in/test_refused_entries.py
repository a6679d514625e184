"""Entries of Triton's and Inductor's caches that are not used, and farms that do not answer.

The caches are called as Triton and Inductor call them. A test has a machine that publishes one
entry, and then another machine, to which a proxy gives what somebody changed.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kernelfarm.client.drop_in import fail_open
from kernelfarm.client.drop_in.fail_open import DropInCacheWarning
from kernelfarm.client.drop_in.inductor_cache import FarmRemoteCache
from kernelfarm.client.drop_in.shared_files import MAX_ENTRY_BYTES, joined, parted
from kernelfarm.client.drop_in.triton_cache import FarmCacheManager
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.errors import MalformedMessageError
from kernelfarm.signing import Signer, Space, new_signer
from kernelfarm.signing.key_files import PROGRAM_KEY, PUBLIC_KEYS, read_signer
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto, manifest_to_proto
from tests.support.farm import TIMEOUT_S
from tests.support.trace_machines import Fleet, counted

pytestmark = pytest.mark.usefixtures("prompt_repetitions")

Change = Callable[[manifest_pb2.SignedVariant], None]
Lookup = Callable[[Fleet], bytes | None]

_BYTES = b"binary " * 100
_METADATA = "kernel.json"


@pytest.fixture(autouse=True)
def _warns_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test may warn; a look-up or publication has as long as a slow machine takes."""
    monkeypatch.setattr(fail_open.without_errors, "__defaults__", (TIMEOUT_S,))
    fail_open._warned.clear()
    yield
    fail_open._warned.clear()


def machine(fleet: Fleet, *, publishes: bool = False, disk: str = "", **stated: str) -> Path:
    """Switches to a machine that trusts entries, with an empty folder for Triton."""
    pinned = {"TRUSTED_KEYS_FILE": str(fleet.keys / PUBLIC_KEYS), "DROP_IN_CACHES": "trusted"}
    root = fleet.machine(publishes=publishes, disk=disk, **{**pinned, **stated})
    fleet.environment.setenv("TRITON_CACHE_DIR", str(root / "triton"))
    return root


def publish(fleet: Fleet, look_up: Lookup) -> None:
    """Switches to a machine that publishes what is missing."""
    machine(fleet, publishes=True)
    assert look_up(fleet) is None
    assert not fail_open._warned


def triton_kernel(fleet: Fleet) -> bytes | None:
    """The binary that Triton would load; stores one if there is none."""
    manager = FarmCacheManager(f"KERNEL{fleet.number}")
    found = manager.get_group(_METADATA)
    if found is not None:
        assert sorted(found) == ["kernel.cubin", _METADATA]
        return Path(found["kernel.cubin"]).read_bytes()
    group = {"kernel.cubin": manager.put(_BYTES, "kernel.cubin")}
    group[_METADATA] = manager.put("{}", _METADATA, binary=False)
    manager.put_group(_METADATA, group)
    return None


def triton_timings(fleet: Fleet) -> bytes | None:
    """The times that Triton's autotuner would use; stores them if there are none."""
    manager, name = FarmCacheManager(f"TUNED{fleet.number}"), "kernel.autotune.json"
    path = manager.get_file(name)
    if path is None:
        manager.put(_BYTES.decode(), name, binary=False)
    return None if path is None else Path(path).read_bytes()


def inductor_value(fleet: Fleet) -> bytes | None:
    """The value that Inductor would unpickle; stores one if there is none."""
    key = f"pt2:fx-graph-v1::{fleet.number}:c1"
    found = FarmRemoteCache().get(key)
    if found is None:
        FarmRemoteCache().put(key, _BYTES)
    return found


LOOKUPS = pytest.mark.parametrize("look_up", [triton_kernel, triton_timings, inductor_value])


@LOOKUPS
def test_what_is_published_is_found_and_revocable_on_disk(fleet: Fleet, look_up: Lookup) -> None:
    tag = "pass:inductor-cache" if look_up is inductor_value else "pass:triton-cache"
    publish(fleet, look_up)
    root = machine(fleet)
    assert look_up(fleet) == _BYTES
    machine(fleet, disk=root.name)
    assert look_up(fleet) == _BYTES
    assert dict(fleet.meddling.calls) == {}
    with CacheAdmin(fleet.farm.endpoint) as admin:
        admin.invalidate([tag])
    machine(fleet, disk=root.name)
    assert look_up(fleet) is None
    machine(fleet)
    assert look_up(fleet) is None
    assert fleet.meddling.calls["LookupTrace"] == 1
    # A publisher with the same folder makes it again.
    machine(fleet, publishes=True, disk=root.name)
    assert look_up(fleet) is None
    machine(fleet)
    assert look_up(fleet) == _BYTES


def resigned(signer: Signer, **changes: Any) -> Change:
    def change(signed: manifest_pb2.SignedVariant) -> None:
        made = signer.sign(replace(manifest_from_proto(signed.manifest), **changes))
        signed.manifest.CopyFrom(manifest_to_proto(made))

    return change


def unsigned(signed: manifest_pb2.SignedVariant) -> None:
    signed.manifest.ClearField("signature")


def tampered(signed: manifest_pb2.SignedVariant) -> None:
    signed.content = signed.content[:-1] + bytes([signed.content[-1] ^ 1])


def with_entry(signer: Signer, make: Callable[[bytes], bytes]) -> Change:
    """Another entry, signed by `signer`."""

    def change(signed: manifest_pb2.SignedVariant) -> None:
        trace = pb.Trace.FromString(signed.content)
        trace.entry = make(trace.entry)
        signed.content = trace.SerializeToString()
        resigned(signer, content=blob_ref(signed.content))(signed)

    return change


REFUSED: dict[str, tuple[str, Callable[[Fleet], Change]]] = {
    "unsigned": ("forged_manifest", lambda f: unsigned),
    "by an unknown key": ("untrusted_key", lambda f: resigned(new_signer(Space.TRACES))),
    "by who signs programs": (
        "untrusted_key", lambda f: resigned(read_signer(f.keys / PROGRAM_KEY, Space.PROGRAMS)),
    ),
    "tampered": ("poisoned_blob", lambda f: tampered),
    "expired": (
        "expired_manifest", lambda f: resigned(f.signer(), not_after_s=int(time.time()) - 10),
    ),
    "of another address": ("manifest_mismatch", lambda f: resigned(f.signer(), key=b"\1" * 32)),
    "of another namespace": ("manifest_mismatch", lambda f: resigned(f.signer(), namespace="x")),
    "of another kind": (
        "malformed_message", lambda f: with_entry(f.signer(), lambda _: joined("other", {})),
    ),
    "damaged": ("malformed_message", lambda f: with_entry(f.signer(), lambda entry: entry[:-9])),
}  # fmt: skip


@LOOKUPS
@pytest.mark.parametrize("harm", REFUSED)
def test_an_entry_that_cannot_be_trusted_is_a_miss(
    fleet: Fleet, look_up: Lookup, harm: str
) -> None:
    reason, change = REFUSED[harm]
    publish(fleet, look_up)
    root = machine(fleet)
    fleet.meddling.trace_change = change(fleet)
    with pytest.warns(DropInCacheWarning, match="is refused") as said:
        assert look_up(fleet) is None
    assert len(said) == 1
    refused = {name: times for name, times in counted().items() if name.startswith("refused.")}
    assert refused == {f"refused.drop_in.{reason}": 1}
    # It is not on disk: without the farm, the next process has what this one compiled, if anything.
    fleet.meddling.stop()
    machine(fleet, disk=root.name)
    look_up(fleet)
    assert not [name for name in counted() if name.endswith("disk.hits")]
    fleet.meddling.start()


@LOOKUPS
def test_without_a_farm_a_look_up_is_a_miss_with_one_warning(fleet: Fleet, look_up: Lookup) -> None:
    machine(fleet)
    fleet.meddling.stop()
    began_s = time.monotonic()
    with pytest.warns(DropInCacheWarning, match="failed") as said:
        assert look_up(fleet) is None
        fleet.number += 0.001953125
        assert look_up(fleet) is None
    assert len(said) == 1
    assert time.monotonic() - began_s < 2 * fail_open.MAX_WAIT_S + 5
    assert sum(n for name, n in counted().items() if ".farm.failures." in name) == 1
    fleet.meddling.start()


@LOOKUPS
def test_a_farm_that_hangs_is_waited_for_once(
    fleet: Fleet, look_up: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(fleet, look_up)
    machine(fleet)
    monkeypatch.setattr(fail_open.without_errors, "__defaults__", (0.5,))
    end = Event()
    fleet.meddling.trace_change = lambda _: bool(end.wait(30)) and None
    with pytest.warns(DropInCacheWarning, match="failed"):
        assert look_up(fleet) is None
    fleet.number += 0.001953125
    assert look_up(fleet) is None
    assert fleet.meddling.calls["LookupTrace"] == 1
    end.set()


@LOOKUPS
def test_where_warnings_are_errors_none_reaches_the_compiler(fleet: Fleet, look_up: Lookup) -> None:
    machine(fleet)
    fleet.meddling.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert look_up(fleet) is None
    fleet.meddling.start()


@LOOKUPS
@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"DROP_IN_CACHES": "off"}, "KERNELFARM_DROP_IN_CACHES is off"),
        ({"SIGNING": "off"}, "it needs the keys of"),
        ({"TRUSTED_KEYS_FILE": "missing.json"}, "invalid_request"),
        ({"TIMEOUT_S": "never"}, "KERNELFARM_TIMEOUT_S"),
    ],
)
def test_who_did_not_opt_in_with_pinned_keys_uses_nothing(
    fleet: Fleet, look_up: Lookup, stated: dict[str, str], message: str
) -> None:
    publish(fleet, look_up)
    machine(fleet, **stated)
    with pytest.warns(DropInCacheWarning) as said:
        assert look_up(fleet) is None
    assert len(said) == 1
    assert message in str(said[0].message)
    assert "LookupTrace" not in fleet.meddling.calls


@LOOKUPS
def test_without_the_private_key_nothing_is_published(fleet: Fleet, look_up: Lookup) -> None:
    for _ in range(2):
        machine(fleet)
        assert look_up(fleet) is None
        assert fleet.meddling.calls["PutTrace"] == 0


def test_a_value_that_is_too_large_is_not_sent(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    key = f"pt2:fx-graph-v1::{fleet.number}:c1"
    assert FarmRemoteCache().get(key) is None
    with pytest.warns(DropInCacheWarning, match="is not published"):
        FarmRemoteCache().put(key, random.Random(0).randbytes(MAX_ENTRY_BYTES + 1))
    assert counted()["inductor_cache.farm.not_published.too_large"] == 1
    assert fleet.meddling.calls["PutTrace"] == 0


@pytest.mark.parametrize("name", ["", ".", "..", "../kernel", "/etc/kernel", "__grp__kernel.json"])
def test_a_file_that_is_not_plainly_named_is_refused(name: str) -> None:
    with pytest.raises(MalformedMessageError, match="plain name"):
        parted("triton", joined("triton", {name: b"x"}))


def test_an_entry_that_inflates_beyond_the_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = joined("triton", {"kernel.ptx": b"\0" * 100_000})
    monkeypatch.setattr("kernelfarm.client.drop_in.shared_files.MAX_FILES_BYTES", 99_999)
    with pytest.raises(MalformedMessageError, match="without the stated bytes"):
        parted("triton", entry)
