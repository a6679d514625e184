"""Why calls on this machine found no package: what differs from the nearest one at the farm.

The farm compares the parts of digests. Which source, attribute, parameter or input a part differs
in, this client reads in the header of the nearest package, if it trusts its publisher. This module
needs no torch, and unpickles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.packages.header import PackageHeader, parted
from kernelfarm.client.packages.questions import Unanswered
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import NotFoundError
from kernelfarm.ir.guards import NO_FACTS
from kernelfarm.signing import CacheAddress, Space, check_content
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto

_TIMEOUT_S = 30.0
MAX_DIFFERENCES = 32


@dataclass(frozen=True, slots=True)
class FactDifference:
    """A fact of a call that differs from the nearest package; empty if one has no such fact."""

    name: str
    here: str
    package: str


def header_at_farm(client: FarmClient, settings: ClientSettings, digest: bytes) -> PackageHeader:
    """The header of a package at the farm, after its signature was verified.

    Raises:
        KernelfarmError: the farm does not answer or has no such package, or this client does not
            trust its publisher.
    """
    answer = TraceClient(client).lookup(digest, NO_FACTS, (), _TIMEOUT_S, wants_program=False)
    if answer.trace is None:
        raise NotFoundError(f"the farm has no package {digest.hex()[:16]} any more")
    manifest = manifest_from_proto(answer.trace.manifest)
    namespaces = settings.namespaces
    namespace = manifest.namespace if manifest.namespace in namespaces else namespaces[0]
    client.verifier.check(manifest, CacheAddress(namespace, Space.TRACES, digest))
    check_content(manifest, answer.trace.content)
    header, _ = parted(pb.Trace.FromString(answer.trace.content).entry)
    return header


def fact_differences(question: Unanswered, header: PackageHeader) -> list[FactDifference]:
    """The facts in which a question differs from a package, in the order of their names."""
    here, package = question.facts, header.facts
    return [
        FactDifference(name, here.get(name, ""), package.get(name, ""))
        for name in sorted(here.keys() | package.keys())
        if here.get(name) != package.get(name)
    ]


def title_of(parts: Mapping[str, str]) -> str:
    """What a question or package is about."""
    sizes = "varying sizes" if parts.get("sizes") == "varying" else "these sizes"
    return f"{parts.get('function', '?')} for {parts.get('target', '?')}, {sizes}"
