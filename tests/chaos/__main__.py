"""Injects faults into a farm under load, in random order, and checks every response.

    python -m tests.chaos [--minutes 30] [--seed N] [--layouts together apart] [--faults NAME ...]
                          [--vendors cpu,cuda] [--frontends 2] [--json FILE] [--markdown FILE]

Half of the time goes to a farm on one machine (`together`), half to one whose processes are in
network namespaces of their own (`apart`). As root it creates these namespaces, and small disks;
otherwise it prints which faults it leaves out. The seed, which is printed, determines the order and
all random choices. The exit status is 1 if a response was wrong, a call had neither response nor
status in time or ended with INTERNAL or UNKNOWN, a client ended, or new programs were not compiled
again within 30 s after a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.chaos.all_faults import ALL_FAULTS, faults_named
from tests.chaos.farm_under_test import FarmUnderTest, farm_apart, farm_together
from tests.chaos.network_namespaces import can_partition
from tests.chaos.report import broken_rules, one_line, table
from tests.chaos.run import ChaosRun, Episode, report_progress

LAYOUTS = {"together": farm_together, "apart": farm_apart}
_DISK = "size=96m"


@contextlib.contextmanager
def small_disks(folder: Path) -> Iterator[None]:
    """Mounts disks of 96 MB for the farm's data and for a client's cache, as root only."""
    if os.geteuid() != 0:
        report_progress("not root: no fault fills a disk")
        yield
        return
    paths = (folder / "farm", folder / "client-disk")
    with contextlib.ExitStack() as mounted:
        for path in paths:
            path.mkdir(parents=True)
            mount = ["mount", "-t", "tmpfs", "-o", _DISK, "none", str(path)]
            subprocess.run(mount, check=True)
            mounted.callback(subprocess.run, ["umount", "-l", str(path)], check=False)
        try:
            yield
        finally:  # the files of a small disk go with it
            shutil.copytree(folder / "farm" / "logs", folder / "logs", dirs_exist_ok=True)


def run_layout(layout: str, options: argparse.Namespace, minutes: float) -> list[Episode]:
    """The episodes of one layout.

    Raises:
        RuntimeError: the farm does not serve even before the first fault.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"kernelfarm-chaos-{layout}-"))
    report_progress(f"{layout}: logs in {folder}")
    episodes = []
    faults = faults_named(options.faults) if options.faults else ALL_FAULTS
    farm: FarmUnderTest
    with (
        small_disks(folder),
        LAYOUTS[layout](folder, options.vendors, options.frontends) as farm,
    ):
        ends_s = time.monotonic() + 60 * minutes
        run = ChaosRun(farm, layout, options.seed, folder)
        for episode in run.run(faults, lambda: time.monotonic() < ends_s):
            report_progress(one_line(episode))
            episodes.append(episode)
    options.dead_clients += [f"{layout}: {name}" for name in run.dead_clients]
    return episodes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--faults", nargs="+", help="only these")
    parser.add_argument("--vendors", default="cpu,cuda")
    parser.add_argument("--frontends", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the farm ends too
    options.dead_clients = []
    report_progress(f"seed {options.seed}")
    episodes: list[Episode] = []
    if not can_partition():
        report_progress("this process may not create network namespaces: no fault cuts a network")
        options.layouts = [layout for layout in options.layouts if layout != "apart"]
    for layout in options.layouts:
        episodes += run_layout(layout, options, options.minutes / len(options.layouts))
    return finish(options, episodes)


def finish(options: argparse.Namespace, episodes: list[Episode]) -> int:
    """Prints and writes the results; returns the exit status."""
    broken = broken_rules(episodes, options.dead_clients)
    text = "\n".join([f"Seed {options.seed}.", "", *table(episodes), "", *broken])
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.json:
        reported = {
            "seed": options.seed,
            "episodes": [fields_of(e) for e in episodes],
            "broken": broken,
        }
        options.json.write_text(json.dumps(reported, indent=2))
    return 1 if broken or not episodes else 0


def fields_of(episode: Episode) -> dict[str, object]:
    """The fields of an episode for JSON, which has no counters."""
    return {**asdict(episode), "statuses": dict(episode.statuses), "holds": episode.holds}


if __name__ == "__main__":
    raise SystemExit(main())
