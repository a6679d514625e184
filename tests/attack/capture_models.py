"""Captures the models of a warming job before it runs: `... MANIFEST FOLDER`, without a farm.

The job then finds its captures, and asks for all programs at once. Otherwise the farm compiles the
kernels of a model faster than the job can capture the next one on the machine that they share.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.settings import client_settings
from kernelfarm.client.warming.capture_case import CaptureRequest, capture_case, capture_identity
from kernelfarm.client.warming.captures import CaptureFolder
from kernelfarm.client.warming.cases import cases_of
from kernelfarm.client.warming.manifest import read_manifest

_NOWHERE = "127.0.0.1:9"


def main() -> None:
    path, folder = Path(sys.argv[1]), CaptureFolder.open(Path(sys.argv[2]))
    access = FarmAccess(client_settings(endpoint=_NOWHERE, disk_cache_bytes=0))
    manifest = read_manifest(path)
    for case in cases_of(manifest):
        target = manifest.traced_target_of(case.model)
        wanted = CaptureRequest(CompileOptions(), target=target)
        identity = capture_identity(case, path.parent, wanted)
        folder.put(identity, capture_case(case, access, path.parent, wanted))
    access.client.close()


if __name__ == "__main__":
    main()
