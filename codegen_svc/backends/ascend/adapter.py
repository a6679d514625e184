"""Triton-Ascend's adapter as a child process: Triton IR text in, Linalg text out.

Only the binary `triton-adapter-opt` of the wheel is used: the wheel's Python package is also named
`triton`, so it cannot be installed beside Triton.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from codegen_svc.backends.ascend.adapter_input import adapter_input
from codegen_svc.backends.ascend.settings import AscendSettings
from kernelfarm.errors import KernelRejectedError, UnavailableError

ADAPTER_VERSION = "3.2.0"
_NAME = "triton-adapter-opt"
_WHEEL_FOLDER = Path("share/kernelfarm/triton-ascend")
_WITHIN_WHEEL = Path("triton/backends/ascend") / _NAME
REMEDY = (
    f"pip install --no-deps --target {Path(sys.prefix) / _WHEEL_FOLDER}"
    f" triton-ascend=={ADAPTER_VERSION}, or set KERNELFARM_TRITON_ADAPTER_OPT"
)
_TIMEOUT_S = 60
_MESSAGE_CHARS = 600

# As in the wheel's `ttir_to_linalg` for the chips before 910_95, with named operations.
_PIPELINE = (
    "--discrete-mask-access-conversion=compile-on-910-95=False force-simt-template=False",
    "--triton-to-annotation",
    "--triton-to-unstructure=compile-on-910-95=False force-simt-template=False",
    "--triton-to-hivm",
    "--triton-to-hfusion",
    "--triton-to-llvm",
    "--bubble-up-operation",
    "--triton-to-linalg=global-kernel=false named-ops=True enable-nd2nz-on-vector=False"
    " enable-select-analysis=False compile-on-910-95=False",
)

# An operation of Triton's dialect, but not an attribute such as `tt.divisibility = 16`.
_LEFT_OVER = re.compile(r"(?:^|=)\s*\"?(tt\.[a-z_]+)\"?(?=[\s(])(?!\s*=)", re.MULTILINE)


def find_adapter() -> Path | None:
    """The adapter: from the setting, else on PATH, else where `make setup` installs it."""
    configured = AscendSettings().triton_adapter_opt
    if configured is not None:
        return configured if configured.is_file() else None
    on_path = shutil.which(_NAME)
    if on_path is not None:
        return Path(on_path)
    installed = Path(sys.prefix) / _WHEEL_FOLDER / _WITHIN_WHEEL
    return installed if installed.is_file() else None


def require_adapter() -> Path:
    """The adapter.

    Raises:
        UnavailableError: it was not found; the message says how to install it.
    """
    path = find_adapter()
    if path is None:
        raise UnavailableError(f"{_NAME} is not installed; {REMEDY}")
    return path


@lru_cache(maxsize=4)
def file_digest(path: Path) -> str:
    """Hex SHA-256 of a tool's file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lower_to_linalg(name: str, ttir: str) -> str:
    """The Linalg text of a kernel's Triton IR.

    Raises:
        KernelRejectedError: the adapter fails, prints an error, or leaves Triton operations in the
            text; its exit status can be 0 in the last two cases.
        UnavailableError: the adapter is missing.
    """
    command = [str(require_adapter()), *_PIPELINE, "-"]
    try:
        result = subprocess.run(
            command,
            input=adapter_input(ttir),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{_NAME} cannot be run: {error}") from error
    if result.returncode != 0 or "error:" in result.stderr:
        raise KernelRejectedError(
            f"{_NAME} {ADAPTER_VERSION} refuses kernel {name}: {result.stderr[:_MESSAGE_CHARS]}"
        )
    left = sorted(set(_LEFT_OVER.findall(result.stdout)))
    if left or not result.stdout.strip():
        raise KernelRejectedError(
            f"{_NAME} {ADAPTER_VERSION} leaves {', '.join(left) or 'no text'} of kernel {name}:"
            " it has no form of it for Ascend"
        )
    return result.stdout
