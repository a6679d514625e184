"""Files of the disk tier that are swapped, copied, cut or otherwise changed between two graphs.

Whatever lies there, the next process gives eager's numbers: from what is whole, or made anew. A
"tracer" is a machine that traced two graphs itself; a "reader" got their traces from the farm.
"""

from __future__ import annotations

import itertools
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.programs import finder
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.signing.key_files import TRACE_KEY
from tests.support.client_process import new_process
from tests.support.farm import Farm
from tests.support.like_eager import compiled, numbers

Harm = Callable[[Path, Path], None]
Function = Callable[[torch.Tensor], torch.Tensor]


def first(x: torch.Tensor) -> torch.Tensor:
    return (x * 1.4375).sin().sum(0)


def second(x: torch.Tensor) -> torch.Tensor:
    return (x * 2.8125).cos().sum(0)


def swap(one: Path, other: Path) -> None:
    spare = one.with_name("spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


def copy(one: Path, other: Path) -> None:
    other.unlink()
    shutil.copy2(one, other)


def hard_link(one: Path, other: Path) -> None:
    other.unlink()
    os.link(one, other)


def symbolic_link(one: Path, other: Path) -> None:
    other.unlink()
    other.symlink_to(one)


def link_to_nothing(one: Path, other: Path) -> None:
    other.unlink()
    other.symlink_to(one.with_name("nothing"))


def cut(one: Path, other: Path) -> None:
    one.write_bytes(one.read_bytes()[:-1])
    other.write_bytes(other.read_bytes()[:17])


def empty(_: Path, other: Path) -> None:
    other.write_bytes(b"")


def zero(_: Path, other: Path) -> None:
    other.write_bytes(bytes(other.stat().st_size))


def flip(one: Path, other: Path) -> None:
    for path, share in ((one, 3), (other, 2)):
        content = bytearray(path.read_bytes())
        content[len(content) // share] ^= 4
        path.write_bytes(content)


def append(one: Path, other: Path) -> None:
    one.write_bytes(one.read_bytes() + b"\0")
    other.write_bytes(other.read_bytes() * 2)


def open_to_others(one: Path, other: Path) -> None:
    swap(one, other)
    one.chmod(0o666)
    other.chmod(0o620)


def pipe(_: Path, other: Path) -> None:
    other.unlink()
    os.mkfifo(other)


def folder(_: Path, other: Path) -> None:
    other.unlink()
    other.mkdir()


HARMS = (
    swap, copy, hard_link, symbolic_link, link_to_nothing, cut, empty, zero, flip, append,
    open_to_others, pipe, folder,
)  # fmt: skip
KINDS = {
    "own traces": "traces/*/*.trace",
    "entries": "programs/*/*/*/*.json",
    "blobs": "blobs/*/*",
    "known epochs": "farms/*[0-9a-f].json",
    "keys": "farms/*.keys.json",
}


class Disk:
    """A disk tier, and processes that begin with nothing else."""

    def __init__(self, farm: Farm, root: Path, environment: pytest.MonkeyPatch) -> None:
        self.root = root
        self._farm = farm
        self._environment = environment

    def begin(self) -> None:
        """Starts a process without graphs, programs and farms in its memory."""
        new_process(self._farm.endpoint, self.root)
        finder.accesses.clear()
        self._environment.setattr(finder, "_store", ProgramStore())
        torch._dynamo.reset()
        self._environment.setenv("KERNELFARM_ENDPOINT", self._farm.endpoint)
        self._environment.setenv("KERNELFARM_DISK_CACHE_DIR", str(self.root))

    def runs(self) -> None:
        """A new process gives eager's numbers for both graphs."""
        self.begin()
        x = numbers(5, 7)
        for function in (first, second):
            torch.testing.assert_close(compiled(function)(x), function(x), rtol=1e-5, atol=1e-5)

    def harm(self, kind: str, harm: Harm) -> None:
        """Harms files of one kind, two by two."""
        paths = sorted(self.root.glob(KINDS[kind]))
        assert len(paths) >= 2, paths
        for one, other in zip(paths[::2], paths[1::2], strict=False):
            harm(one, other)


@pytest.fixture(scope="module")
def filled(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Disks of who traced both graphs, and of who found their traces at the farm."""
    folder = tmp_path_factory.mktemp("disks")
    with pytest.MonkeyPatch.context() as environment:
        disks = [Disk(farm, folder / name, environment) for name in ("tracer", "reader")]
        environment.setenv("KERNELFARM_TRACE_KEY_FILE", str(farm.data_dir / "keys" / TRACE_KEY))
        disks[0].runs()
        assert counters.snapshot()["warm.farm.published"] == 2
        environment.delenv("KERNELFARM_TRACE_KEY_FILE")
        disks[1].runs()
        assert counters.snapshot()["warm.farm.hits"] == 2
        for disk in disks:  # what another farm left there
            for path in list((disk.root / "farms").iterdir()):
                twin = path.with_name("0" * 16 + path.name[16:])
                twin.write_bytes(path.read_bytes().replace(b"a", b"b"))
    yield disks[0].root, disks[1].root


@pytest.fixture
def copied(
    farm: Farm, filled: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Disk]:
    """Gives a copy of one of the disks."""

    def copy_of(who: int) -> Disk:
        root = shutil.copytree(filled[who], tmp_path / str(who))
        return Disk(farm, root, monkeypatch)

    return copy_of


def rows() -> Iterator[Any]:
    """Every harm to every kind of a tracer's files, and to the two kinds that a reader's disk has.

    The default run has each harm with two or three kinds, and each kind with six or seven harms.
    """
    of_both = ((0, "tracer", tuple(KINDS)), (1, "reader", ("entries", "blobs")))
    for who, name, kinds in of_both:
        pairs = itertools.product(enumerate(HARMS), enumerate(kinds))
        for (harm_number, harm), (kind_number, kind) in pairs:
            is_default = (harm_number + kind_number) % (2 + who) == 0
            marks = [] if is_default else [pytest.mark.slow]
            yield pytest.param(who, kind, harm, id=f"{name}-{kind}-{harm.__name__}", marks=marks)


@pytest.mark.parametrize(("who", "kind", "harm"), list(rows()))
def test_a_changed_disk_never_changes_numbers(
    who: int,
    kind: str,
    harm: Harm,
    copied: Callable[[int], Disk],
) -> None:
    disk = copied(who)
    disk.harm(kind, harm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.runs()
        disk.runs()  # what was made anew is whole
    # The third process needs nothing of the farm any more.
    reported = counters.snapshot()
    assert reported.get("farm.hits", 0) + reported.get("farm.misses", 0) == 0, reported
    assert not [name for name in reported if name.startswith("refused.") and reported[name]], (
        reported
    )


def test_the_disks_that_are_harmed_serve_as_long_as_they_are_whole(
    copied: Callable[[int], Disk],
) -> None:
    for who, used in enumerate(("warm.hits", "warm.disk.hits")):
        copied(who).runs()
        reported = counters.snapshot()
        assert (reported[used], reported["disk.hits"]) == (2, 2), reported
        assert reported.get("farm.hits", 0) + reported.get("farm.prefetched", 0) == 0
