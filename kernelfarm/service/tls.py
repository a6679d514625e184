"""Transport security as files: who we are, and whom we believe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from kernelfarm.errors import CallerError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate chain and key (PEM); `client_ca_file` demands client certificates."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """What a server listens with; renewed files are taken at the next handshake.

        Raises:
            CallerError: a file cannot be read, or holds no PEM.
        """
        shown = self._stamp()
        first = self._configuration()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            try:
                stamp = self._stamp()
                configuration = self._configuration() if stamp != shown else None
            except CallerError:
                return None  # half written or gone: the last good certificate serves on
            shown = stamp
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            first,
            renewed,  # type: ignore[arg-type] # None means unchanged, which the stubs do not know
            require_client_authentication=self.client_ca_file is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (read_pem(self.key_file), read_pem(self.cert_file))
        roots = None if self.client_ca_file is None else read_pem(self.client_ca_file)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        files = (self.cert_file, self.key_file, self.client_ca_file)
        try:
            stats = [file.stat() for file in files if file is not None]
        except OSError as error:
            raise CallerError(f"cannot read a certificate's file: {error}") from error
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """Whom a channel believes (None: the system's roots), and its own certificate, if it has one.

    `server_name` is the name that the server's certificate must bear, where it is not the address.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """What a channel connects with.

        Raises:
            CallerError: a file cannot be read, or a certificate comes without its key.
        """
        if (self.cert_file is None) != (self.key_file is None):
            raise CallerError("a client certificate needs its key file, and a key its certificate")
        return grpc.ssl_channel_credentials(
            None if self.ca_file is None else read_pem(self.ca_file),
            None if self.key_file is None else read_pem(self.key_file),
            None if self.cert_file is None else read_pem(self.cert_file),
        )

    def options(self) -> list[tuple[str, int | str]]:
        """What is added to a channel's options."""
        if not self.server_name:
            return []
        return [("grpc.ssl_target_name_override", self.server_name)]


def tls_to_self(cert_file: Path) -> ChannelTls:
    """How a probe connects to the server that bears a certificate: it believes that one alone.

    Raises:
        CallerError: the certificate cannot be read, or names nobody.
    """
    from cryptography import x509  # noqa: PLC0415 -- for probes alone

    certificate = x509.load_pem_x509_certificate(read_pem(cert_file))
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise CallerError(f"the certificate in {cert_file} has no subject names") from error
    dns = names.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return ChannelTls(ca_file=cert_file, server_name=[*dns, *addresses, ""][0])


def read_pem(path: Path) -> bytes:
    """A PEM file's content.

    Raises:
        CallerError: it cannot be read, or is no PEM.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CallerError(f"cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN " not in content:
        raise CallerError(f"{path} holds no PEM; expected `-----BEGIN ...`")
    return content
