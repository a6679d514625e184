"""Certificate authorities and certificates for tests, with keys that are quick to generate."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate and its key as files."""

    cert_file: Path
    key_file: Path


class Authority:
    """A certificate authority in a folder; `ca_file` is its own certificate."""

    def __init__(self, folder: Path, name: str = "test CA") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.ca_file = folder / "ca.pem"
        certificate = made.sign(self._key, hashes.SHA256())
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, sans: tuple[x509.GeneralName, ...] = (), file: str = "") -> Pair:
        """A certificate with a common name and subject alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _builder(subject, self._name, key.public_key())
        if sans:
            made = made.add_extension(x509.SubjectAlternativeName(sans), critical=False)
        certificate = made.sign(self._key, hashes.SHA256())
        stem = file or name.replace("/", "_")
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        pair.cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def issue_server(self, file: str = "server") -> Pair:
        """A certificate for servers on this machine."""
        sans = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        return self.issue("a farm", sans=sans, file=file)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )
