"""Settings of the frontend service, from the environment with prefix `KERNELFARM_`."""

from __future__ import annotations

from pydantic import Field

from kernelfarm.service.settings import ServiceSettings

_MIB = 1024 * 1024


class FrontendSettings(ServiceSettings):
    """Everything that an operator of the frontend may set."""

    frontend_listen: str = "127.0.0.1:50051"
    optimizer_address: str = "127.0.0.1:50052"
    codegen_address: str = "127.0.0.1:50053"
    cache_url: str = "redis://127.0.0.1:6380/0"
    namespace: str = "default"

    max_message_bytes: int = Field(default=32 * _MIB, gt=0, lt=2**31)
    """Largest message that a client may send."""
    max_graph_nodes: int = Field(default=50_000, gt=0)
    """A 32-layer Llama has 3,000; a graph of this size is compiled in seconds, not minutes."""
    max_compiles: int = Field(default=256, gt=0)
    """Programs compiled at once by one frontend; more are told to come back."""
    cpu_threads: int = Field(default=2, gt=0)
    """Threads for decoding and decomposing."""
    lease_ttl_s: float = Field(default=6.0, gt=0)
    """A frontend that dies loses its programs to a waiting one after this time."""
    optimizer_timeout_s: float = Field(default=120.0, gt=0)
    codegen_timeout_s: float = Field(default=600.0, gt=0)
    rejection_ttl_s: float = Field(default=300.0, gt=0)
    """How long a program that cannot be compiled is refused without trying again."""
    outage_ttl_s: float = Field(default=2.0, gt=0)
    """How long those who waited hear of a failure that may pass."""
