"""The last step, if Huawei's CANN is installed: Linalg text to an object for the chip.

The command line is that of Triton-Ascend 3.2.0 for Ascend 910B and 910_93 chips.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from kernelfarm.errors import KernelRejectedError, UnavailableError

TOOL = "bishengir-compile"
REMEDY = "install Huawei's CANN toolkit and put its bishengir-compile on PATH"
_TIMEOUT_S = 100
_MESSAGE_CHARS = 600
# The adapter states the kind of core in an attribute that the compiler does not accept.
_MIX_MODE = re.compile(r', mix_mode\s*=\s*"[^"]*"')


def find_bishengir() -> Path | None:
    """The compiler on PATH, None without CANN."""
    found = shutil.which(TOOL)
    return Path(found) if found else None


def compile_linalg(
    tool: Path, name: str, linalg: str, chip: str, *, is_double_buffered: bool
) -> bytes:
    """The object file of a kernel; `is_double_buffered`: there is room to fetch the next block.

    Raises:
        KernelRejectedError: the compiler refuses the kernel.
        UnavailableError: the compiler cannot be run.
    """
    help_text = _help(tool)
    is_new = "limit-auto-multi-buffer-buffer" in help_text
    hivm = "--reg-based=true" if "reg-based" in help_text else "--enable-hivm-compile=true"
    with tempfile.TemporaryDirectory(prefix="kernelfarm-") as folder:
        source = Path(folder) / "kernel.ttadapter.mlir"
        source.write_text(_MIX_MODE.sub("", linalg), encoding="utf-8")
        command = [
            *(str(tool), str(source), f"--target={chip}"),
            *(
                f"--enable-auto-multi-buffer={is_double_buffered}",
                "--enable-auto-bind-sub-block=True",
            ),
            *("--enable-hfusion-compile=true", hivm, "--enable-triton-kernel-compile=true"),
            *("-o", str(Path(folder) / "kernel")),
        ]
        _run(command, name)
        return (Path(folder) / ("kernel.o" if is_new else "kernel_reloc.o")).read_bytes()


def _run(command: list[str], name: str) -> None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{TOOL} cannot be run: {error}") from error
    if result.returncode != 0:
        complaint = result.stderr[:_MESSAGE_CHARS]
        raise KernelRejectedError(f"{TOOL} refuses kernel {name}: {complaint}")


@lru_cache(maxsize=2)
def _help(tool: Path) -> str:
    try:
        return subprocess.run(
            [str(tool), "--help"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{TOOL} cannot be run: {error}") from error
