"""The certificate, key and CA files of servers and channels."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelfarm.errors import CallerError

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate chain and key (PEM); `client_ca_file` demands client certificates."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """The TLS of a listener that is not gRPC's; it reads the files once.

        Raises:
            CallerError: a file cannot be read, or holds no valid certificate or key.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise CallerError(
                f"cannot use {self.cert_file} and {self.key_file}: {error}"
            ) from error
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of a listener; renewed files are used from the next handshake on.

        Raises:
            CallerError: a file cannot be read, or holds no PEM.
        """
        import grpc  # noqa: PLC0415 -- clients read settings without it

        version = self._file_versions()
        first = self._configuration()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal version
            try:
                latest = self._file_versions()
                configuration = self._configuration() if latest != version else None
            except CallerError:
                return None  # half written or missing: the last valid certificate stays in use
            version = latest
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            first,
            renewed,  # type: ignore[arg-type] # None means unchanged; the stubs lack it
            require_client_authentication=self.client_ca_file is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        import grpc  # noqa: PLC0415 -- see `credentials`

        pair = (read_pem(self.key_file), read_pem(self.cert_file))
        roots = None if self.client_ca_file is None else read_pem(self.client_ca_file)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def _file_versions(self) -> tuple[tuple[int, int, int], ...]:
        files = (self.cert_file, self.key_file, self.client_ca_file)
        try:
            stats = [file.stat() for file in files if file is not None]
        except OSError as error:
            raise CallerError(f"cannot read a certificate file: {error}") from error
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """The CA that a channel trusts, and its own certificate, if it has one.

    Without `ca_file`, the channel trusts the system's CAs. `server_name` is the name in the
    server's certificate, if it differs from the address.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials of a channel.

        Raises:
            CallerError: a file cannot be read, or only one of certificate and key is set.
        """
        import grpc  # noqa: PLC0415 -- clients read settings without it

        if (self.cert_file is None) != (self.key_file is None):
            raise CallerError(
                "only one of the client certificate and its key is set; set both files or none"
            )
        return grpc.ssl_channel_credentials(
            None if self.ca_file is None else read_pem(self.ca_file),
            None if self.key_file is None else read_pem(self.key_file),
            None if self.cert_file is None else read_pem(self.cert_file),
        )

    def options(self) -> list[tuple[str, int | str]]:
        """The gRPC options that the channel needs in addition."""
        if not self.server_name:
            return []
        return [("grpc.ssl_target_name_override", self.server_name)]


def tls_to_self(cert_file: Path) -> ChannelTls:
    """The TLS of a probe that trusts only the server with this certificate.

    Raises:
        CallerError: the certificate cannot be read, or has no subject names.
    """
    from cryptography import x509  # noqa: PLC0415 -- only probes need it

    certificate = x509.load_pem_x509_certificate(read_pem(cert_file))
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise CallerError(
            f"the certificate in {cert_file} has no subject alternative name; expected a DNS name"
            " or an IP address"
        ) from error
    dns = names.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return ChannelTls(ca_file=cert_file, server_name=[*dns, *addresses, ""][0])


def read_pem(path: Path) -> bytes:
    """A PEM file's content.

    Raises:
        CallerError: the file cannot be read, or holds no PEM.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CallerError(f"cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN " not in content:
        raise CallerError(f"{path} holds no PEM; expected `-----BEGIN ...`")
    return content
