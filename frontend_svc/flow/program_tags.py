"""What a program depends on, as epoch tags: the reasons for which it may be invalidated."""

from __future__ import annotations

import re
from functools import lru_cache

import frontend_svc
from frontend_svc.flow.downstream import BuiltArtifacts, OptimizerInfo
from frontend_svc.flow.graph_job_client import ImportedGraph
from kernelfarm.service.fingerprint import service_fingerprint
from kernelfarm.signing.tags import MAX_NAME_CHARS, driver_tag, op_tag, pass_tag, toolchain_tag
from kernelfarm.targets import target_facts

# Operators come from clients: what cannot stand in a tag is left out of it.
_UNFIT = re.compile(r"[^!-~]")


@lru_cache(maxsize=1)
def frontend_toolchain() -> str:
    """`frontend@fingerprint` over the code that imports and decomposes, read once in a process."""
    return f"frontend@{service_fingerprint(frontend_svc)}"


def program_tags(
    graph: ImportedGraph,
    target: str,
    optimizing: OptimizerInfo,
    kernels: tuple[BuiltArtifacts, ...],
) -> tuple[str, ...]:
    """Tags of a program: its captured operators, the passes, every toolchain, its binaries."""
    tags = {toolchain_tag(frontend_toolchain()), toolchain_tag(optimizing.toolchain)}
    tags.add(driver_tag(target_facts(target).vendor))
    tags.update(op_tag(_UNFIT.sub("", op)[:MAX_NAME_CHARS] or "?") for op in graph.ops)
    tags.update(pass_tag(name) for name in graph.passes)
    tags.update(pass_tag(name) for name in optimizing.passes)
    for kernel in kernels:
        tags.update(kernel.tags)
    return tuple(sorted(tags))
