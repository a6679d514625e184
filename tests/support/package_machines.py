"""Machines that share packages of models through one farm, and packages that somebody changed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import kernelfarm
from kernelfarm.client.packages.header import PackageHeader, inflated, joined, parted
from kernelfarm.errors import MalformedMessageError
from kernelfarm.signing import Signer
from kernelfarm.signing.key_files import PUBLIC_KEYS
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto, manifest_to_proto
from tests.support.like_eager import numbers
from tests.support.packaged_models import Scaled
from tests.support.trace_machines import Fleet, counted

ChangeSigned = Callable[[manifest_pb2.SignedVariant], None]


def traced_frames() -> int:
    """How many frames Dynamo has traced."""
    return int(torch._dynamo.utils.counters["frames"]["total"])


def machine(fleet: Fleet, *, publishes: bool = False, disk: str = "", **stated: str) -> Path:
    """Switches to a machine that trusts packages; returns its folder."""
    pinned = {"TRUSTED_KEYS_FILE": str(fleet.keys / PUBLIC_KEYS), "PACKAGES": "trusted"}
    return fleet.machine(publishes=publishes, disk=disk, **{**pinned, "MODE": "strict", **stated})


def call_model(
    fleet: Fleet, model: torch.nn.Module | None = None, rows: int = 5, **options: Any
) -> dict[str, int]:
    """Calls a model twice, compares it with eager, and returns the counters."""
    model, x = model or Scaled(fleet.number, seed=3), numbers(rows, 12)
    fast = kernelfarm.packaged(model, **options)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)
    return counted()


class Mark:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


def of_packages(change: ChangeSigned) -> ChangeSigned:
    """Applies a change to packages alone, not to traces."""

    def changed(signed: manifest_pb2.SignedVariant) -> None:
        try:
            parted(pb.Trace.FromString(signed.content).entry)
        except MalformedMessageError:
            return
        change(signed)

    return changed


def repacked(signed: manifest_pb2.SignedVariant, body: bytes | None, **changes: Any) -> None:
    """Changes fields of the header, and the body; the manifest names the new content."""
    trace = pb.Trace.FromString(signed.content)
    header, stored = parted(trace.entry)
    trace.entry = joined(replace(header, **changes), inflated(stored) if body is None else body)
    signed.content = trace.SerializeToString()
    manifest = replace(manifest_from_proto(signed.manifest), content=blob_ref(signed.content))
    signed.manifest.CopyFrom(manifest_to_proto(manifest))


def header_of(signed: manifest_pb2.SignedVariant) -> PackageHeader:
    return parted(pb.Trace.FromString(signed.content).entry)[0]


def sign(signed: manifest_pb2.SignedVariant, signer: Signer, **changes: Any) -> None:
    """Signs the manifest with changed fields."""
    manifest = signer.sign(replace(manifest_from_proto(signed.manifest), **changes))
    signed.manifest.CopyFrom(manifest_to_proto(manifest))


def marking(folder: Path) -> bytes:
    """A body that makes a folder when PyTorch unpickles it."""
    return pickle.dumps(Mark(folder))
