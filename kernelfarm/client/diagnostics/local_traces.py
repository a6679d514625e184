"""The traces that processes on this machine made, and why the farm did not provide them.

A graph whose trace the farm provides is not traced here. So each local trace was a miss at the
farm, or was never looked up there. This module needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelfarm.client.disk.files import MAX_TRACE_BYTES
from kernelfarm.client.disk.sweep import TRACE
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.settings import ClientSettings
from kernelfarm.client.traces.header import parted
from kernelfarm.digest import trace_digest
from kernelfarm.errors import IntegrityError, MalformedMessageError
from kernelfarm.private_files import read_private
from kernelfarm.signing import CacheAddress, Space
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LocalTrace:
    """A trace on this machine's disk; `used_s` is its last use, seconds since 1970."""

    digest: bytes
    parts: Mapping[str, str]
    used_s: float


def local_traces(root: Path) -> list[LocalTrace]:
    """The machine's own traces, last used first; skips corrupt files and other versions' files."""
    found = []
    for path in root.glob(f"traces/*/*{TRACE}"):
        try:
            used_s = path.stat().st_mtime
            header, _ = parted(read_private(path, MAX_TRACE_BYTES))
            digest = trace_digest(header.parts)
        except (OSError, MalformedMessageError):
            continue
        if digest.hex() == path.stem:
            found.append(LocalTrace(digest, header.parts, used_s))
    return sorted(found, key=lambda trace: trace.used_s, reverse=True)


def explained(
    client: FarmClient, digest: bytes, parts: Mapping[str, str]
) -> pb.ExplainTraceMissResponse:
    """Why the farm has no trace of a digest for this client.

    Raises:
        KernelfarmError: the farm does not answer.
    """
    return TraceClient(client).explain(digest, parts, _TIMEOUT_S)


def why_not_trusted(
    client: FarmClient, settings: ClientSettings, explanation: pb.ExplainTraceMissResponse
) -> str:
    """Why this client does not trust a trace of the farm; empty if it does."""
    manifest = manifest_from_proto(explanation.manifest)
    namespaces = settings.namespaces
    namespace = manifest.namespace if manifest.namespace in namespaces else namespaces[0]
    try:
        client.verifier.check(
            manifest, CacheAddress(namespace, Space.TRACES, explanation.trace.key)
        )
    except IntegrityError as error:
        return f"{error.reason}: {error}"
    return ""
