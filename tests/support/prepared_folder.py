"""A folder of programs compiled on a machine without a GPU, for clients with a GPU and no farm.

It holds a disk tier, the farm's public keys, and `prepared.json`: endpoint, target, and the
canonical text of each captured graph, so that a client can compare its own capture.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import facts_of
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.contract import LoadedKernel
from kernelfarm.client.programs.tiers import ProgramRequest, find_program
from kernelfarm.client.settings import client_settings
from kernelfarm.digest import canonical_graph, program_key
from kernelfarm.ir.artifact import LaunchFacts
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import print_graph

OPTIONS = CompileOptions()
AT_ONCE = 8
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Prepared:
    """The content of `prepared.json`; `notes` are for the caller of `prepare`."""

    endpoint: str
    target: str
    graphs: dict[str, list[str]]
    failures: dict[str, str]
    notes: dict[str, Any]


def prepare(
    named: Iterable[tuple[str, list[Graph]]],
    folder: Path,
    target: str,
    notes: dict[str, Any],
    options: Sequence[CompileOptions] = (OPTIONS,),
) -> Prepared:
    """Compiles every graph with each of the options by a new farm; stores the programs there."""
    from tests.support.farm import running_farm  # noqa: PLC0415  # readers need no farm

    graphs: dict[str, list[str]] = {}
    failures: dict[str, str] = {}
    farm_folder, disk = folder / "farm", folder / "disk"
    with (
        running_farm(farm_folder, target.split(":", maxsplit=1)[0]) as farm,
        environment({"KERNELFARM_DISK_CACHE_DIR": str(disk.resolve())}),
    ):
        shutil.copy(next(farm_folder.rglob("public.json")), folder / "public.json")
        access = FarmAccess(client_settings(endpoint=farm.endpoint, timeout_s=TIMEOUT_S))

        def ask(name: str, graph: Graph, stated: CompileOptions) -> None:
            key = program_key(graph, target, stated.pairs())
            request = ProgramRequest(graph, key, target, stated, facts_of(graph), _NothingLoads())
            try:
                find_program(access, request)
            except Exception as error:  # one failure is reported with the others
                failures[name] = f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for name, captured in named:
                graphs[name] = [canonical_text(graph) for graph in captured]
                for graph, stated in product(captured, options):
                    pool.submit(ask, name, graph, stated)
        prepared = Prepared(farm.endpoint, target, graphs, failures, notes)
    (folder / "prepared.json").write_text(json.dumps(asdict(prepared), indent=1))
    return prepared


def read_prepared(folder: Path) -> Prepared:
    """The content of a folder that `prepare` filled."""
    return Prepared(**json.loads((folder / "prepared.json").read_text()))


@contextmanager
def offline(folder: Path) -> Iterator[Prepared]:
    """The content of the folder; clients that start within the block use this folder alone."""
    prepared = read_prepared(folder)
    stated = {
        "KERNELFARM_ENDPOINT": prepared.endpoint,
        "KERNELFARM_DISK_CACHE_DIR": str(folder.resolve() / "disk"),
        "KERNELFARM_TRUSTED_KEYS_FILE": str(folder.resolve() / "public.json"),
    }
    with environment(stated):
        yield prepared


@contextmanager
def environment(stated: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of the environment within the block."""
    before = dict(os.environ)
    os.environ.update(stated)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def canonical_text(graph: Graph) -> str:
    """The canonical graph, over which its key is taken, as text."""
    return print_graph(canonical_graph(graph))


class _NothingLoads:
    """A loader for a device that is absent: programs are stored, and do not run."""

    def load(self, binary: bytes, launch: LaunchFacts) -> LoadedKernel:
        return _NotLoaded()

    def context(self) -> int:
        return 0


class _NotLoaded:
    def bind(self, sizes: tuple[int, ...]) -> Any:
        raise NotImplementedError("prepared for another machine")
