"""The vendor of `examples/riscv_vendor`, installed in a folder as its users install it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import examples

PACKAGE = Path(examples.__file__).parent / "riscv_vendor"
TARGET, WIDE_TARGET = "riscv:rv64gcv", "riscv:rv64gcv_zvl256b"

SMALL = ("reference", "h", "f16-norm", "bf16-softmax", "rows")
"""The small models of `tests/e2e/riscv_client.py`."""


def install_riscv_vendor(folder: Path) -> str:
    """Installs the vendor's package; returns the PYTHONPATH with which processes find it."""
    # Setuptools writes into the folder that it builds from.
    source = shutil.copytree(PACKAGE, folder / "source")
    site = folder / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check", "--target", site, source),
        ],
        check=True,
        timeout=120,
    )
    return os.pathsep.join(filter(None, [str(site), *sys.path]))
