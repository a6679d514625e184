"""The epoch tags of a program: everything by which it may be invalidated."""

from __future__ import annotations

import re
from functools import lru_cache

import frontend_svc
from frontend_svc.flow.downstream import BuiltArtifacts, OptimizerInfo
from frontend_svc.flow.graph_job_client import ImportedGraph
from kernelfarm.service.fingerprint import service_fingerprint
from kernelfarm.signing.tags import (
    MAX_NAME_CHARS,
    driver_tag,
    limit_tag,
    op_tag,
    pass_tag,
    toolchain_tag,
)
from kernelfarm.targets import target_facts

# Operator names come from clients: characters that no tag may contain are left out.
_UNFIT = re.compile(r"[^!-~]")


@lru_cache(maxsize=1)
def frontend_toolchain() -> str:
    """`frontend@fingerprint` over the frontend's code, computed once in a process."""
    return f"frontend@{service_fingerprint(frontend_svc)}"


def program_tags(
    graph: ImportedGraph,
    target: str,
    optimizing: OptimizerInfo,
    kernels: tuple[BuiltArtifacts, ...],
) -> tuple[str, ...]:
    """Tags for captured operators, passes, every toolchain, the driver and the kernels' tags.

    A program that lacks a kernel because of a limit has the tag of its vendor's limits.
    """
    vendor = target_facts(target).vendor
    tags = {toolchain_tag(frontend_toolchain()), toolchain_tag(optimizing.toolchain)}
    tags.add(driver_tag(vendor))
    tags.update(op_tag(_UNFIT.sub("", op)[:MAX_NAME_CHARS] or "?") for op in graph.ops)
    tags.update(pass_tag(name) for name in graph.passes)
    tags.update(pass_tag(name) for name in optimizing.passes)
    for kernel in kernels:
        tags.update(kernel.tags)
        if kernel.is_limit:
            tags.add(limit_tag(vendor))
    return tuple(sorted(tags))
