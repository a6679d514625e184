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
    """Everything that an operator of the frontend may set."""

    frontend_listen: str = "127.0.0.1:50051"
    frontend_processes: int = Field(default=1, gt=0)
    """Gateways that share the port, each a process with a memory of its own."""
    frontend_process_listen: str = ""
    """Address of this process alone; with it the port may be shared with other gateways."""
    optimizer_address: str = "127.0.0.1:50052"
    codegen_address: str = "127.0.0.1:50053"
    cache_url: str = "redis://127.0.0.1:6380/0"
    namespace: str = Field(default="default", pattern=r"^[^{}/\s]{1,200}$")

    max_message_bytes: int = Field(default=16 * _MIB, gt=0, lt=2**31)
    """Largest message that a client may send; a graph of 50,000 nodes takes a third of it."""
    max_response_bytes: int = Field(default=512 * _MIB, gt=0)
    """Blobs on their way to clients, those taken slowly among them; more must come again."""
    max_watches: int = Field(default=2048, gt=0)
    """Streams of invalidations that one gateway serves at once."""
    max_watches_per_tenant: int = Field(default=512, gt=0)
    """Those of one tenant among them: each of its processes has one."""
    max_trace_bytes: int = Field(default=3 * _MIB, gt=0, lt=4 * _MIB)
    """Largest trace that clients may share; a Llama of 180 layers takes 1.5 MiB."""
    max_graph_nodes: int = Field(default=50_000, gt=0)
    """A 32-layer Llama has 3,000; a graph of this size is compiled in seconds, not minutes."""
    max_compiles: int = Field(default=256, gt=0)
    """Programs compiled at once by one frontend; more are told to come back."""
    max_compiles_per_tenant: int = Field(default=128, gt=0)
    """Programs compiled at once for a tenant without a limit of its own, by all frontends."""
    cpu_processes: int = Field(default=2, gt=0)
    """Child processes for decoding and decomposing, and as many more for heavy graphs."""
    lease_ttl_s: float = Field(default=6.0, gt=0)
    """A frontend that dies loses its programs to a waiting one after this time."""
    optimizer_timeout_s: float = Field(default=120.0, gt=0)
    codegen_timeout_s: float = Field(default=600.0, gt=0)
    max_attempts: int = Field(default=3, gt=0)
    """A program that ended so many frontends is refused."""
    quarantine_ttl_s: float = Field(default=600.0, gt=0)
    """For how long it is refused."""
    gateway_cache_bytes: int = Field(default=256 * _MIB, ge=0)
    """Memory for programs that are served without asking Redis; 0 asks it always."""
    gateway_max_age_s: float = Field(default=30.0, gt=0)
    """How long a program stays there; then its blobs and its toolchains are looked at again."""
    advertise_every_s: float = Field(default=10.0, gt=0)
    """How often this frontend tells its own and the optimizer's toolchain."""
    admin_token: SecretStr = SecretStr("")
    """In a farm without tenants, who sends it may invalidate and sweep; empty allows it over unix
    sockets and loopback."""
    tenants_file: Path | None = None
    """Who may call, do and hold what (`kernelfarm tenants`); None: whoever connects may compile."""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    """The public certificate and its key, PEM; without, the public door is in the clear."""
    client_ca_file: Path | None = None
    """Who signs clients' certificates."""
    frontend_mtls_listen: str = ""
    """A second public door, for clients that show a certificate."""
    sweep_every_s: float = Field(default=3600.0, ge=0)
    """How often entries that nobody will find are freed; 0 leaves it to `kernelfarm sweep`."""
    sweep_cache_url: str | None = None
    """The cache as a user that may free entries of both spaces; None: as this frontend's own."""
    sweep_keys_per_s: float = Field(default=5_000.0, gt=0)
    """How many keys a sweep or a dry run looks at in a second."""
    dry_runs_per_minute: float = Field(default=6.0, gt=0)
    """Dry runs walk over all entries; more are told to come back."""
    offline_validity_s: float = Field(default=24 * 3600.0, gt=0)
    """How long a client may use a program without asking the farm again."""
    rejection_ttl_s: float = Field(default=300.0, gt=0)
    """How long a program that cannot be compiled is refused without trying again."""
    exhausted_ttl_s: float = Field(default=30.0, gt=0)
    """How long a graph that used too much processor time or memory is refused without trying."""
    outage_ttl_s: float = Field(default=2.0, gt=0)
    """How long those who waited hear of a failure that may pass."""

    def public_tls(self) -> ServerTls | None:
        """How the public door listens; None in the clear.

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
        """How the door for clients with certificates listens.

        Raises:
            CallerError: our own certificate or the clients' CA is not set.
        """
        tls = self.public_tls()
        if tls is None or self.client_ca_file is None:
            raise CallerError(
                "KERNELFARM_FRONTEND_MTLS_LISTEN needs KERNELFARM_TLS_CERT_FILE, _TLS_KEY_FILE and"
                " KERNELFARM_CLIENT_CA_FILE"
            )
        return replace(tls, client_ca_file=self.client_ca_file)
