"""The coverage certificate: what a farm has of a manifest, with what is missing and why.

    {"certificate": {...}, "key_id": "...", "signature": BASE64}

The signature is over the certificate as JSON with sorted keys and without spaces. The key is a
private key for traces, which warming jobs hold. Without a key, both fields are empty.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelfarm.client.disk.files import write_whole
from kernelfarm.errors import CallerError, UntrustedKeyError
from kernelfarm.signing import Signer
from kernelfarm.signing.statements import StatementSignature, sign_statement
from kernelfarm.tuning import MAX_CANDIDATES, MAX_DEVICE_CHARS

DOMAIN = "certificate"
MAX_CERTIFICATE_BYTES = 256 << 20
_MAX_ENTRIES = 1_000_000
_MAX_SUBJECTS = 4096
_MAX_DEVICES = 64

Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TraceCoverage(_Strict):
    """Whether a farm has the trace of a graph, or the package of a model.

    `none` means that there cannot be one; `reason` says why, also if it is missing.
    """

    state: Literal["present", "missing", "none"]
    digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    reason: str = ""


class SubjectCoverage(_Strict):
    """What the fleet chose for one tuning subject; `name` is for people."""

    name: str
    digest: Hex32
    candidates: Annotated[int, Field(ge=2, le=MAX_CANDIDATES)]
    winner: Annotated[int, Field(ge=0, lt=MAX_CANDIDATES)] | None = None


class TuningCoverage(_Strict):
    """What the fleet chose for a program on one device, and the program with these choices.

    `none` means that the fleet has not chosen yet, so that clients run the program that nobody
    measured; `missing` that the farm lacks the chosen program; `reason` says why. `key` is that of
    the chosen program; empty if the choices are among the kernels of the program itself.
    """

    device: Annotated[str, Field(min_length=1, max_length=MAX_DEVICE_CHARS)]
    state: Literal["present", "missing", "none"]
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    reason: str = ""
    subjects: Annotated[tuple[SubjectCoverage, ...], Field(max_length=_MAX_SUBJECTS)] = ()


class ProgramCoverage(_Strict):
    """One model, its sizes and element type, one of its graphs, and one target.

    `key` is empty if the model could not be captured. `kernels` are the keys of its kernels,
    `toolchains` are `backend@fingerprint`. `stub` says why its binaries cannot run, if so.
    """

    model: str
    tag: str
    dtype: str
    sizes: dict[str, str]
    graph: Annotated[int, Field(ge=0)]
    target: str
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    is_present: bool
    reason: str = ""
    kernels: tuple[Hex32, ...] = ()
    toolchains: tuple[str, ...] = ()
    stub: str = ""
    trace: TraceCoverage
    package: TraceCoverage | None = None
    """Whether the farm has the model's package; None if the job made none."""
    tuning: Annotated[tuple[TuningCoverage, ...], Field(max_length=_MAX_DEVICES)] | None = None
    """What the fleet chose, by device; None if nothing is tuned on the devices of the job."""

    @property
    def is_covered(self) -> bool:
        """True if the program is present, and nothing that belongs to it is missing."""
        states = [shared.state for shared in (self.trace, self.package) if shared is not None]
        states += [chosen.state for chosen in self.tuning or ()]
        return self.is_present and "missing" not in states

    @property
    def title(self) -> str:
        """One line that names it."""
        sizes = (f"{name}={size}" for name, size in self.sizes.items())
        words = (self.model, self.dtype, *sizes, f"graph {self.graph}", self.target)
        return " ".join(word for word in words if word)


class FarmFacts(_Strict):
    """The farm that a certificate is about."""

    endpoint: str
    namespace: str
    version: str


class Certificate(_Strict):
    """What a farm has of a manifest; `made_time` is in UTC, ISO 8601."""

    format: Literal[1] = 1
    made_time: str
    farm: FarmFacts
    manifest_sha256: Hex32
    is_complete: bool
    entries: Annotated[tuple[ProgramCoverage, ...], Field(max_length=_MAX_ENTRIES)]

    def missing(self) -> list[ProgramCoverage]:
        """The entries that are not covered."""
        return [entry for entry in self.entries if not entry.is_covered]

    def canonical_bytes(self) -> bytes:
        """The bytes that are signed."""
        stated = self.model_dump(mode="json", exclude_none=True)
        return json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()


class SignedCertificate(_Strict):
    """A certificate with its signature (base64) and the id of its key; both may be empty."""

    certificate: Certificate
    key_id: Annotated[str, Field(max_length=64)] = ""
    signature: Annotated[str, Field(max_length=128)] = ""

    def statement(self) -> StatementSignature:
        """The signature.

        Raises:
            UntrustedKeyError: the certificate is not signed.
        """
        if not self.signature:
            raise UntrustedKeyError(
                "the certificate is not signed; run `kernelfarm warm` with a private key for traces"
            )
        try:
            return StatementSignature(self.key_id, base64.b64decode(self.signature, validate=True))
        except binascii.Error as error:
            raise UntrustedKeyError(
                f"the certificate's signature is not base64: {error}"
            ) from error


def certificate_of(
    farm: FarmFacts, manifest_sha256: str, entries: Iterable[ProgramCoverage], made: datetime
) -> Certificate:
    """The certificate about these entries."""
    stated = tuple(entries)
    return Certificate(
        made_time=made.isoformat(timespec="seconds"),
        farm=farm,
        manifest_sha256=manifest_sha256,
        is_complete=all(entry.is_covered for entry in stated),
        entries=stated,
    )


def signed_certificate(certificate: Certificate, signer: Signer | None) -> SignedCertificate:
    """The certificate with the signer's signature; unsigned without a signer."""
    if signer is None:
        return SignedCertificate(certificate=certificate)
    made = sign_statement(signer, DOMAIN, certificate.canonical_bytes())
    text = base64.b64encode(made.signature).decode()
    return SignedCertificate(certificate=certificate, key_id=made.key_id, signature=text)


def write_certificate(path: Path, signed: SignedCertificate) -> None:
    """Writes a certificate as JSON, atomically.

    Raises:
        CallerError: the file cannot be written.
    """
    try:
        text = signed.model_dump_json(indent=1, exclude_none=True)
        write_whole(path, text.encode() + b"\n")
    except OSError as error:
        raise CallerError(f"cannot write the certificate {path}: {error}") from error


def read_certificate(path: Path) -> SignedCertificate:
    """The certificate in a file; its signature is not verified yet.

    Raises:
        CallerError: the file cannot be read, or is no certificate.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CERTIFICATE_BYTES + 1)
    except OSError as error:
        raise CallerError(f"cannot read the certificate {path}: {error}") from error
    if len(content) > MAX_CERTIFICATE_BYTES:
        raise CallerError(f"{path} is larger than {MAX_CERTIFICATE_BYTES} bytes, the limit")
    try:
        return SignedCertificate.model_validate_json(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise CallerError(f"{path} is no certificate: {where}: {fault['msg']}") from error


def certificate_lines(certificate: Certificate) -> Iterator[str]:
    """The certificate as text for people: one line for each entry, then the totals."""
    for entry in certificate.entries:
        state = "present" if entry.is_present else "MISSING"
        trace = entry.trace.state if entry.trace.state != "missing" else "MISSING"
        yield f"{state:8} trace {trace:8} {entry.title}  {entry.key[:16]}"
        for reason in (entry.reason, entry.stub and f"stub: {entry.stub}", entry.trace.reason):
            if reason:
                yield f"         {reason}"
        if entry.package is not None:
            shown = "MISSING" if entry.package.state == "missing" else entry.package.state
            yield f"         package {shown}  {entry.package.digest[:16]} {entry.package.reason}"
        for chosen in entry.tuning or ():
            shown = "MISSING" if chosen.state == "missing" else chosen.state
            what = f"{len(chosen.subjects)} subjects {chosen.key[:16]} {chosen.reason}"
            yield f"         tuning {shown}  {chosen.device}: {what}".rstrip()
    missing = len(certificate.missing())
    programs = sum(entry.is_present for entry in certificate.entries)
    traces = sum(entry.trace.state == "present" for entry in certificate.entries)
    packages = sum(
        entry.package is not None and entry.package.state == "present"
        for entry in certificate.entries
    )
    kernels = {kernel for entry in certificate.entries for kernel in entry.kernels}
    yield (
        f"{programs} of {len(certificate.entries)} programs present, {len(kernels)} distinct"
        f" kernels, {traces} traces, {packages} packages; {missing} missing"
    )
