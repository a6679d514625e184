"""The files of a bundle: an OCI image layout, in a folder or a tar file.

    oci-layout                  the version of the layout
    index.json                  one manifest for each program, sorted by program key
    blobs/sha256/HEX            manifests, signed programs (their config); layers: blobs, traces and
                                packages of models, tuning records of their products and kernels

Every file but the first two is named by its SHA-256 and checked when it is read. Equal contents
give equal bytes: JSON has sorted keys, and a tar file has neither times nor owners. What a bundle
says is trusted only as far as the signatures in it are.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelfarm.errors import CallerError, PoisonedBlobError

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
BUNDLE_TYPE = "application/vnd.kernelfarm.bundle.v1"
PROGRAM_TYPE = "application/vnd.kernelfarm.program.v1"
SIGNED_PROGRAM_TYPE = "application/vnd.kernelfarm.program.signed.v1+protobuf"
SIGNED_TRACE_TYPE = "application/vnd.kernelfarm.trace.signed.v1+protobuf"
SIGNED_PACKAGE_TYPE = "application/vnd.kernelfarm.package.signed.v1+protobuf"
SIGNED_TUNING_TYPE = "application/vnd.kernelfarm.tuning.signed.v1+protobuf"
BLOB_TYPE = "application/vnd.kernelfarm.blob.v1"
"""Media types: those of OCI, then those of kernelfarm (`kernelfarm.v1.SignedVariant` messages)."""

TARGET_NOTE = "dev.kernelfarm.target"
MODEL_NOTE = "dev.kernelfarm.models"
"""Annotations of a manifest, for people: the target, and the names of models."""

_LAYOUT = {"imageLayoutVersion": "1.0.0"}
_MAX_INDEX_BYTES = 64 << 20
_MAX_MANIFEST_BYTES = 16 << 20
_MAX_PROGRAM_BYTES = 64 << 20
_MAX_TUNING_BYTES = 128 << 10
_MAX_TUNING_RECORDS = 4096
_MAX_LAYER_BYTES = 1 << 30
_MAX_PROGRAMS = 100_000
_MAX_LAYERS = 70_000
_MAX_MEMBERS = 4_000_000


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Descriptor(_Message):
    """OCI's reference to a content by digest."""

    mediaType: Annotated[str, Field(max_length=255)]  # noqa: N815 (as OCI spells it)
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, le=_MAX_LAYER_BYTES)]
    annotations: dict[str, str] = {}


class _ImageIndex(_Message):
    version: Literal[2] = Field(alias="schemaVersion")
    kind: Literal["application/vnd.kernelfarm.bundle.v1"] = Field(alias="artifactType")
    manifests: Annotated[list[Descriptor], Field(max_length=_MAX_PROGRAMS)]


class _ImageManifest(_Message):
    version: Literal[2] = Field(alias="schemaVersion")
    kind: Literal["application/vnd.kernelfarm.program.v1"] = Field(alias="artifactType")
    config: Descriptor
    layers: Annotated[list[Descriptor], Field(max_length=_MAX_LAYERS)]
    annotations: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class BundledProgram:
    """One program of a bundle that is written: the signed program, and what belongs to it.

    `signed`, and each of `traces`, `packages` and `tuning`, are serialized
    `kernelfarm.v1.SignedVariant` messages.
    """

    key: bytes
    target: str
    models: tuple[str, ...]
    signed: bytes = field(repr=False)
    traces: tuple[bytes, ...] = field(repr=False)
    blobs: Mapping[bytes, bytes] = field(repr=False)
    packages: tuple[bytes, ...] = field(default=(), repr=False)
    tuning: tuple[bytes, ...] = field(default=(), repr=False)


class BundleWriter:
    """Writes a bundle into a folder, program by program."""

    def __init__(self, folder: Path) -> None:
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        self._folder = folder
        self._manifests: dict[bytes, Descriptor] = {}

    def add(self, program: BundledProgram) -> None:
        """Writes a program; a second one with the same key replaces the first."""
        layers = [
            *self._put_all(SIGNED_TRACE_TYPE, program.traces),
            *self._put_all(SIGNED_PACKAGE_TYPE, program.packages),
            *self._put_all(SIGNED_TUNING_TYPE, program.tuning),
            *self._put_all(BLOB_TYPE, program.blobs.values()),
        ]
        notes = {TARGET_NOTE: program.target, MODEL_NOTE: " ".join(sorted(program.models))}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": PROGRAM_TYPE,
            "config": _descriptor(self._put(SIGNED_PROGRAM_TYPE, program.signed)),
            "layers": [_descriptor(layer) for layer in layers],
            "annotations": notes,
        }
        stored = self._put(MANIFEST_TYPE, _json(manifest))
        name = {"org.opencontainers.image.ref.name": program.key.hex()}
        self._manifests[program.key] = stored.model_copy(update={"annotations": notes | name})

    def finish(self) -> None:
        """Writes the index; without it, the folder is no bundle."""
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "artifactType": BUNDLE_TYPE,
            "manifests": [
                {**_descriptor(found), "artifactType": PROGRAM_TYPE}
                for _, found in sorted(self._manifests.items())
            ],
        }
        (self._folder / "oci-layout").write_bytes(_json(_LAYOUT))
        (self._folder / "index.json").write_bytes(_json(index))

    def _put_all(self, media_type: str, contents: Iterable[bytes]) -> list[Descriptor]:
        return sorted((self._put(media_type, content) for content in contents), key=_digest)

    def _put(self, media_type: str, content: bytes) -> Descriptor:
        name = hashlib.sha256(content).hexdigest()
        path = self._blobs / name
        if not path.exists():
            path.write_bytes(content)
        return Descriptor(mediaType=media_type, digest=f"sha256:{name}", size=len(content))


@contextmanager
def writing_bundle(path: Path) -> Iterator[BundleWriter]:
    """A writer for a new bundle: a tar file if the name ends in `.tar`, else a folder.

    The bundle appears under its name when the block ends without an error.

    Raises:
        CallerError: the name exists already, or cannot be written.
    """
    if path.exists():
        raise CallerError(f"{path} exists; name a new folder or file for the bundle")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise CallerError(f"cannot write into {path.parent}: {error}") from error
    try:
        bundle = folder / "bundle"
        bundle.mkdir()
        writer = BundleWriter(bundle)
        yield writer
        writer.finish()
        if path.suffix == ".tar":
            _write_tar(bundle, folder / "bundle.tar")
            bundle = folder / "bundle.tar"
        os.replace(bundle, path)
    except OSError as error:
        raise CallerError(f"cannot write the bundle {path}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_tar(folder: Path, path: Path) -> None:
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            content = (folder / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))


class _Files(Protocol):
    def read(self, name: str, max_bytes: int) -> bytes:
        """The content of a file of the bundle."""


class _FolderFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, max_bytes: int) -> bytes:
        with (self._folder / name).open("rb") as file:
            return _bounded(file.read(max_bytes + 1), name, max_bytes)


class _TarFiles:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members: dict[str, tarfile.TarInfo] = {}
        for count, member in enumerate(tar):
            if count >= _MAX_MEMBERS:
                raise CallerError(f"a tar file of more than {_MAX_MEMBERS} members, the limit")
            if member.isreg():
                self._members[member.name.removeprefix("./")] = member

    def read(self, name: str, max_bytes: int) -> bytes:
        member = self._members.get(name)
        opened = None if member is None else self._tar.extractfile(member)
        if opened is None:
            raise FileNotFoundError(f"the tar file has no {name}")
        with opened as file:
            return _bounded(file.read(max_bytes + 1), name, max_bytes)


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """One program of a bundle that is read; contents are read on demand and checked by digest."""

    annotations: Mapping[str, str]
    _files: _Files = field(repr=False)
    _config: Descriptor
    _signed_layers: Mapping[str, Sequence[Descriptor]] = field(repr=False)
    _blobs: Mapping[str, Descriptor] = field(repr=False)

    @property
    def target(self) -> str:
        """Its target as the bundle states it; the signed program decides."""
        return self.annotations.get(TARGET_NOTE, "")

    def signed(self) -> bytes:
        """The signed program, serialized; its signature is not verified.

        Raises:
            PoisonedBlobError, CallerError: the file was changed, or is missing.
        """
        return _read_blob(self._files, self._config, _MAX_PROGRAM_BYTES)

    def traces(self) -> Iterator[bytes]:
        """Its signed traces, serialized; signatures are not verified."""
        return self._signed_contents(SIGNED_TRACE_TYPE)

    def packages(self) -> Iterator[bytes]:
        """The signed packages of its models, serialized; signatures are not verified."""
        return self._signed_contents(SIGNED_PACKAGE_TYPE)

    @property
    def tuning_count(self) -> int:
        """The number of its tuning records."""
        return len(self._signed_layers[SIGNED_TUNING_TYPE])

    def tuning(self) -> Iterator[bytes]:
        """Its signed tuning records, serialized; signatures are not verified.

        Raises:
            CallerError: there are too many, or one is too large.
        """
        count = self.tuning_count
        if count > _MAX_TUNING_RECORDS:
            raise CallerError(
                f"a program of the bundle has {count} tuning records; expected at most"
                f" {_MAX_TUNING_RECORDS}"
            )
        return self._signed_contents(SIGNED_TUNING_TYPE, _MAX_TUNING_BYTES)

    def blob(self, sha256: bytes) -> bytes:
        """The content of a blob.

        Raises:
            CallerError: the bundle does not have it.
            PoisonedBlobError: it was changed.
        """
        layer = self._blobs.get(f"sha256:{sha256.hex()}")
        if layer is None:
            raise CallerError(f"the bundle has no blob {sha256.hex()}; export it again")
        return _read_blob(self._files, layer, _MAX_LAYER_BYTES)

    def _signed_contents(
        self, media_type: str, max_bytes: int = _MAX_PROGRAM_BYTES
    ) -> Iterator[bytes]:
        for layer in self._signed_layers[media_type]:
            yield _read_blob(self._files, layer, max_bytes)


class Bundle:
    """A bundle that is read."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        layout = _parsed(_Layout, files.read("oci-layout", 1024), "oci-layout")
        if layout.imageLayoutVersion != _LAYOUT["imageLayoutVersion"]:
            raise CallerError(f"an OCI layout of version {layout.imageLayoutVersion[:20]!r}")
        content = files.read("index.json", _MAX_INDEX_BYTES)
        self._index = _parsed(_ImageIndex, content, "index.json")

    def __len__(self) -> int:
        return len(self._index.manifests)

    def programs(self) -> Iterator[StoredProgram]:
        """The programs in the order of the index.

        Raises:
            CallerError, PoisonedBlobError: a file is missing, malformed or changed.
        """
        for described in self._index.manifests:
            content = _read_blob(self._files, described, _MAX_MANIFEST_BYTES)
            manifest = _parsed(_ImageManifest, content, described.digest)
            layers = manifest.layers
            signed = {
                kind: [layer for layer in layers if layer.mediaType == kind]
                for kind in (SIGNED_TRACE_TYPE, SIGNED_PACKAGE_TYPE, SIGNED_TUNING_TYPE)
            }
            blobs = {layer.digest: layer for layer in layers if layer.mediaType == BLOB_TYPE}
            yield StoredProgram(manifest.annotations, self._files, manifest.config, signed, blobs)


class _Layout(_Message):
    imageLayoutVersion: Annotated[str, Field(max_length=64)]  # noqa: N815


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """The bundle in a folder or a tar file.

    Raises:
        CallerError: there is none, or a file of it is missing or malformed.
    """
    try:
        if path.is_dir():
            yield Bundle(_FolderFiles(path))
            return
        with tarfile.open(path, "r:") as tar:
            yield Bundle(_TarFiles(tar))
    except (OSError, tarfile.TarError) as error:
        raise CallerError(
            f"{path} is no bundle: {error}; expected what `kernelfarm export-bundle` wrote"
        ) from error


MessageT = TypeVar("MessageT", bound=_Message)


def _parsed(form: type[MessageT], content: bytes, name: str) -> MessageT:
    try:
        return form.model_validate_json(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise CallerError(f"{name[:80]} of the bundle: {where}: {fault['msg']}") from error


def _read_blob(files: _Files, described: Descriptor, max_bytes: int) -> bytes:
    name = described.digest.removeprefix("sha256:")
    if described.size > max_bytes:
        raise CallerError(f"{name} of the bundle has {described.size} bytes; at most {max_bytes}")
    content = files.read(f"blobs/sha256/{name}", described.size)
    if len(content) != described.size or hashlib.sha256(content).hexdigest() != name:
        raise PoisonedBlobError(
            f"the file blobs/sha256/{name} of the bundle was changed; export it again"
        )
    return content


def _bounded(content: bytes, name: str, max_bytes: int) -> bytes:
    if len(content) > max_bytes:
        raise CallerError(f"{name} of the bundle is larger than {max_bytes} bytes, the limit")
    return content


def _digest(described: Descriptor) -> str:
    return described.digest


def _descriptor(described: Descriptor) -> dict[str, object]:
    stated = described.model_dump()
    return stated if stated["annotations"] else {k: stated[k] for k in stated if k != "annotations"}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
