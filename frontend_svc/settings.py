"""Settings of the frontend service, from the environment with prefix `KERNELFARM_`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import Field, SecretStr

from kernelfarm.errors import CallerError
from kernelfarm.service.process_pool.settings import WorkSettings
from kernelfarm.service.signing import SigningSettings
from kernelfarm.service.tls import ServerTls

_MIB = 1024 * 1024


class FrontendSettings(SigningSettings, WorkSettings):
    """Settings of the frontend."""

    frontend_listen: str = "127.0.0.1:50051"
    """Address of the public listener: HOST:PORT, or unix:PATH."""
    frontend_processes: int = Field(default=1, gt=0)
    """Number of gateways that share the port; each is a process with its own memory tier."""
    frontend_process_listen: str = ""
    """Address of this gateway alone; if it is set, gateways may share the public port."""
    optimizer_address: str = "127.0.0.1:50052"
    """Address of the optimizer."""
    codegen_address: str = "127.0.0.1:50053"
    """Address of the code generators' edge."""
    cache_url: str = "redis://127.0.0.1:6380/0"
    """URL of the Redis server of the cache."""
    namespace: str = Field(default="default", pattern=r"^[^{}/\s]{1,200}$")
    """Name of the farm, which is its namespace in the cache."""

    max_message_bytes: int = Field(default=16 * _MIB, gt=0, lt=2**31)
    """Largest message that a client may send, bytes; a graph of 50,000 nodes needs a third."""
    max_response_bytes: int = Field(default=512 * _MIB, gt=0)
    """Blobs that are being sent to clients, bytes; further calls are refused and must retry."""
    max_watches: int = Field(default=2048, gt=0)
    """Invalidation streams that one gateway serves at once."""
    max_watches_per_tenant: int = Field(default=512, gt=0)
    """Invalidation streams of one tenant at one gateway; each client process has one."""
    max_trace_bytes: int = Field(default=3 * _MIB, gt=0, lt=4 * _MIB)
    """Largest trace that clients may share, bytes; a Llama of 180 layers takes 1.5 MiB."""
    max_graph_nodes: int = Field(default=50_000, gt=0)
    """Largest graph, nodes; a Llama of 32 layers has 3,000. The largest compiles in seconds."""
    max_compiles: int = Field(default=256, gt=0)
    """Programs that one frontend compiles at once; further requests are refused and must retry."""
    max_compiles_per_tenant: int = Field(default=128, gt=0)
    """Programs that all frontends compile at once for a tenant without a limit of its own."""
    cpu_processes: int = Field(default=2, gt=0)
    """Child processes that decode and decompose graphs; as many more for heavy graphs."""
    lease_ttl_s: float = Field(default=6.0, gt=0)
    """Time to live of a lease, seconds: after a frontend dies, another one may build after this."""
    optimizer_timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of one call to the optimizer, seconds."""
    codegen_timeout_s: float = Field(default=600.0, gt=0)
    """Timeout of one call to the code generators, seconds."""
    max_attempts: int = Field(default=3, gt=0)
    """A program is quarantined after so many attempts that ended their frontends."""
    quarantine_ttl_s: float = Field(default=600.0, gt=0)
    """Duration of a quarantine, seconds."""
    gateway_cache_bytes: int = Field(default=256 * _MIB, ge=0)
    """Size of the memory tier, bytes; programs in it need no look-up in Redis. 0: no such tier."""
    gateway_max_age_s: float = Field(default=30.0, gt=0)
    """Seconds that a program stays in the memory tier before the store checks it again."""
    advertise_every_s: float = Field(default=10.0, gt=0)
    """Seconds between advertisements of this frontend's and the optimizer's toolchain."""
    admin_token: SecretStr = SecretStr("")
    """Without tenants: callers with this token may invalidate and sweep. Empty: callers over unix
    sockets and loopback may."""
    tenants_file: Path | None = None
    """Tenants with roles and quotas (`kernelfarm tenants`); None: every caller may compile."""
    page_listen: str = ""
    """HOST:PORT of the farm's page for browsers, with the TLS of the public listener; empty: no
    page. Of several gateways on one port, the first one serves it."""
    page_hosts: str = ""
    """Names, separated by commas, under which browsers reach the page; names of this machine and
    IP addresses are always accepted."""
    page_session_s: float = Field(default=900.0, gt=0, le=24 * 3600)
    """Seconds for which a browser stays logged in to the page."""
    page_max_connections: int = Field(default=32, gt=0)
    """Connections that the page serves at once, a quarter of them from one address; others wait."""
    tls_cert_file: Path | None = None
    """Certificate of the public listener, PEM; without certificate and key it is not encrypted."""
    tls_key_file: Path | None = None
    """Private key of the public listener's certificate, PEM."""
    client_ca_file: Path | None = None
    """CA that signs clients' certificates, PEM."""
    frontend_mtls_listen: str = ""
    """Address of a second public listener, for clients with certificates; empty: none."""
    sweep_every_s: float = Field(default=3600.0, ge=0)
    """Seconds between sweeps; 0: only `kernelfarm sweep` starts one."""
    sweep_cache_url: str | None = None
    """URL of the cache with a user that may delete entries of all key spaces; None: `cache_url`."""
    sweep_keys_per_s: float = Field(default=5_000.0, gt=0)
    """Keys that a sweep or a dry run scans per second."""
    dry_runs_per_minute: float = Field(default=6.0, gt=0)
    """Limit of dry runs, which scan all entries; further calls are refused and must retry."""
    offline_validity_s: float = Field(default=24 * 3600.0, gt=0)
    """Seconds for which a client may use a program without contacting the farm."""
    import_keys_file: Path | None = None
    """Public keys of farms whose programs administrators may import; None: the trusted keys."""
    import_max_age_s: float = Field(default=90 * 24 * 3600.0, ge=0)
    """Seconds after the end of its validity for which an exported program may be imported."""
    rejection_ttl_s: float = Field(default=300.0, gt=0)
    """Seconds for which a program that cannot be compiled is refused without another attempt."""
    exhausted_ttl_s: float = Field(default=30.0, gt=0)
    """Seconds for which a graph that used too much time or memory is refused."""
    outage_ttl_s: float = Field(default=2.0, gt=0)
    """Seconds for which a temporary failure is returned to requests that waited for the program."""

    def public_tls(self) -> ServerTls | None:
        """The TLS files of the public listener; None if it is not encrypted.

        Raises:
            CallerError: a certificate without its key, or a key without its certificate.
        """
        if self.tls_cert_file and self.tls_key_file:
            return ServerTls(self.tls_cert_file, self.tls_key_file)
        if self.tls_cert_file or self.tls_key_file:
            raise CallerError(
                "KERNELFARM_TLS_CERT_FILE and KERNELFARM_TLS_KEY_FILE go together: set both or none"
            )
        return None

    def certificate_tls(self) -> ServerTls:
        """The TLS files of the listener for clients with certificates.

        Raises:
            CallerError: the farm's certificate or the clients' CA is not set.
        """
        tls = self.public_tls()
        if tls is None or self.client_ca_file is None:
            raise CallerError(
                "KERNELFARM_FRONTEND_MTLS_LISTEN needs KERNELFARM_TLS_CERT_FILE, _TLS_KEY_FILE and"
                " KERNELFARM_CLIENT_CA_FILE"
            )
        return replace(tls, client_ca_file=self.client_ca_file)
