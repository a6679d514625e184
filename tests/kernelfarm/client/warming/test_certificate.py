"""Coverage certificates: their signatures, their files, their text."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelfarm.client.warming.certificate import (
    DOMAIN,
    Certificate,
    FarmFacts,
    ProgramCoverage,
    TraceCoverage,
    certificate_lines,
    certificate_of,
    read_certificate,
    signed_certificate,
    write_certificate,
)
from kernelfarm.errors import CallerError, ForgedManifestError, UntrustedKeyError
from kernelfarm.signing import Keyring, Signer, Space, TrustedKey, new_signer
from kernelfarm.signing.statements import check_statement


def entry(*, is_present: bool = True, trace: str = "present") -> ProgramCoverage:
    return ProgramCoverage(
        model="bert",
        tag="bert@1",
        dtype="f32",
        sizes={"batch": "1..64"},
        graph=0,
        target="cpu:x86-64-v3",
        key="ab" * 32,
        is_present=is_present,
        reason="" if is_present else "NO_ANSWER: no farm answers",
        kernels=("cd" * 32,),
        toolchains=("cpu@1",),
        trace=TraceCoverage(state=trace, digest="ef" * 32),  # type: ignore[arg-type]
    )


def made(*entries: ProgramCoverage) -> Certificate:
    farm = FarmFacts(endpoint="127.0.0.1:1", namespace="default", version="0.1.0")
    return certificate_of(farm, "12" * 32, entries, datetime(2026, 11, 20, tzinfo=UTC))


@pytest.fixture(scope="module")
def signer() -> Signer:
    return new_signer(Space.TRACES)


def check(path: Path, *keys: TrustedKey) -> None:
    signed = read_certificate(path)
    content = signed.certificate.canonical_bytes()
    check_statement(signed.statement(), DOMAIN, content, Keyring(keys), time.time())


def test_a_signed_certificate_is_read_as_it_was_written(tmp_path: Path, signer: Signer) -> None:
    certificate = made(entry(), entry(is_present=False, trace="none"))
    write_certificate(tmp_path / "c.json", signed_certificate(certificate, signer))
    assert read_certificate(tmp_path / "c.json").certificate == certificate
    check(tmp_path / "c.json", signer.trusted)


def test_a_changed_certificate_is_refused(tmp_path: Path, signer: Signer) -> None:
    path = tmp_path / "c.json"
    write_certificate(path, signed_certificate(made(entry(is_present=False)), signer))
    path.write_text(path.read_text().replace('"is_present": false', '"is_present": true'))
    with pytest.raises(ForgedManifestError, match="was changed after key"):
        check(path, signer.trusted)


def test_a_certificate_of_an_untrusted_or_expired_key_is_refused(
    tmp_path: Path, signer: Signer
) -> None:
    path = tmp_path / "c.json"
    write_certificate(path, signed_certificate(made(entry()), signer))
    key = signer.trusted.public_key
    with pytest.raises(UntrustedKeyError, match="expected a trusted key for traces"):
        check(path, new_signer(Space.TRACES).trusted)
    with pytest.raises(UntrustedKeyError, match="expected a trusted key for traces"):
        check(path, TrustedKey(key, Space.PROGRAMS))
    with pytest.raises(UntrustedKeyError, match="which has expired"):
        check(path, TrustedKey(key, Space.TRACES, not_after_s=1))


def test_an_unsigned_certificate_has_no_signature_to_check(tmp_path: Path) -> None:
    write_certificate(tmp_path / "c.json", signed_certificate(made(entry()), None))
    with pytest.raises(UntrustedKeyError, match="the certificate is not signed"):
        check(tmp_path / "c.json")


def test_a_certificate_is_complete_if_no_program_and_no_possible_trace_is_missing() -> None:
    assert made(entry(), entry(trace="none")).is_complete
    assert not made(entry(trace="missing")).is_complete
    assert not made(entry(is_present=False, trace="none")).is_complete


@pytest.mark.parametrize("text", ["{}", "[]", '{"certificate": {"format": 2}}', "\0"])
def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CallerError, match="is no certificate"):
        read_certificate(tmp_path / "c.json")


def test_the_text_has_a_line_for_each_entry_and_the_totals() -> None:
    lines = list(certificate_lines(made(entry(), entry(is_present=False, trace="none"))))
    assert lines[0].startswith("present  trace present  bert f32 batch=1..64 graph 0 cpu:x86-64-v3")
    assert lines[1].startswith("MISSING  trace none")
    assert lines[2].strip() == "NO_ANSWER: no farm answers"
    assert lines[3] == (
        "1 of 2 programs present, 1 distinct kernels, 1 traces, 0 packages; 1 missing"
    )
