"""What a job captured: the graphs of each case, on disk for the next run of the job.

One file for each case, named by a digest of everything that the capture depends on. The traces in
these files are signed by the job, so a file that another user may have written is not read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from kernelfarm.client.disk.files import read_sealed, write_sealed
from kernelfarm.client.traces.publication import Epoch
from kernelfarm.errors import CallerError
from kernelfarm.private_files import keep_private, make_private_folder

_SUFFIX = ".capture"


class _Stored(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


class CapturedTrace(_Stored):
    """The trace of a graph, or a package, for the target of the capturing device.

    `entry` is the trace (`traces.entry`) or package (`packages.header`); the parts of its digest
    are in its header. `made_in` is an epoch from before the graph was traced.
    """

    entry: bytes
    made_in: Epoch


class CapturedProduct(_Stored):
    """A product whose maker the fleet chooses: its fragment, and the nodes that equal it.

    `graph` is a serialized `kernelfarm.v1.Graph`.
    """

    nodes: tuple[int, ...]
    graph: bytes


class CapturedCaseGraph(_Stored):
    """One graph of a case: a serialized `kernelfarm.v1.Graph`, its trace, and the case's package.

    `device` is the kind of device that it was captured on (`cpu`, `cuda`). Without a trace,
    `no_trace` is the reason. `no_package` is empty if no package was asked for. `products` are
    those for which the fleet chooses, if it was asked to.
    """

    graph: bytes
    device: str
    trace: CapturedTrace | None = None
    no_trace: str = ""
    package: CapturedTrace | None = None
    no_package: str = ""
    products: tuple[CapturedProduct, ...] = ()


class CaseCapture(_Stored):
    """The graphs of one case, in the order in which the model runs them."""

    graphs: tuple[CapturedCaseGraph, ...]


class CaptureFolder:
    """The captures of earlier runs in a folder of this user's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @staticmethod
    def open(folder: Path) -> CaptureFolder:
        """A folder, which is made if it does not exist.

        Raises:
            CallerError: it cannot be made, or others may write into it.
        """
        try:
            make_private_folder(folder)
        except OSError as error:
            raise CallerError(f"cannot make the folder {folder} for captures: {error}") from error
        keep_private(folder)
        return CaptureFolder(folder)

    def get(self, identity: str) -> CaseCapture | None:
        """The capture of a case; None if there is none, or its file cannot be used."""
        try:
            return CaseCapture.model_validate_json(read_sealed(self._path(identity)))
        except (
            OSError,
            ValueError,
        ):  # pydantic's too: it is captured again, and the file is replaced
            return None

    def put(self, identity: str, capture: CaseCapture) -> None:
        """Stores a capture, atomically.

        Raises:
            CallerError: the folder cannot be written.
        """
        path = self._path(identity)
        try:
            write_sealed(path, capture.model_dump_json().encode())
        except OSError as error:
            raise CallerError(f"cannot write {path}: {error}") from error

    def _path(self, identity: str) -> Path:
        return self._folder / f"{identity}{_SUFFIX}"


def identity_of(facts: object) -> str:
    """The name of a capture: a digest (hex) of all that it depends on."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(b"kernelfarm-capture-1\n" + text.encode()).hexdigest()
