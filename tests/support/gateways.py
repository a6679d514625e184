"""A store with published programs, and gateways that serve them: real processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from kernelfarm.cache import KernelCache, SigningPolicy, Space, UnsignedVariant
from kernelfarm.cache.embedded import EmbeddedServer, ServerRole, start_server
from kernelfarm.signing import BlobRef
from kernelfarm.signing.key_files import (
    KERNEL_KEY,
    PROGRAM_KEY,
    PUBLIC_KEYS,
    make_keys,
    read_keyring,
    read_signer,
)
from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.ports import reserved_port

LOOKUP = "/kernelfarm.v1.CompileService/Lookup"
TAG = "op:aten.gelu.default"
# As many tags as a program of a transformer layer has.
TAGS = (TAG, *(f"op:aten.op{number}.default" for number in range(30)), "driver:cpu")
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 120.0
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Bench:
    """A store, its folder, and the environment of gateways that use it."""

    folder: Path
    store: EmbeddedServer
    environment: dict[str, str]

    @property
    def trust(self) -> SigningPolicy:
        """The signing policy of the gateways."""
        keys = self.folder / "keys"
        signer = read_signer(keys / PROGRAM_KEY, Space.PROGRAMS)
        return SigningPolicy(signer, read_keyring(keys / PUBLIC_KEYS))

    def cache(self) -> KernelCache:
        """A client of the key space of programs."""
        return KernelCache(self.store.url, space=Space.PROGRAMS, signing=self.trust)


@contextlib.contextmanager
def running_store() -> Iterator[Bench]:
    """An empty store and new signing keys; both are deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="kf-bench-") as name:
        folder = Path(name)
        make_keys(folder / "keys")
        store = start_server(ServerRole.CACHE)
        environment = {
            **os.environ,
            "KERNELFARM_CACHE_URL": store.url,
            "KERNELFARM_OPTIMIZER_ADDRESS": f"unix:{folder}/optimizer",
            "KERNELFARM_PROGRAM_KEY_FILE": str(folder / "keys" / PROGRAM_KEY),
            "KERNELFARM_KERNEL_KEY_FILE": str(folder / "keys" / KERNEL_KEY),
            "KERNELFARM_TRUSTED_KEYS_FILE": str(folder / "keys" / PUBLIC_KEYS),
        }
        try:
            yield Bench(folder, store, environment)
        finally:
            store.stop()


async def publish(bench: Bench, count: int, content_bytes: int) -> list[bytes]:
    """Publishes programs under new keys, and returns the keys.

    Then invalidates another tag: look-ups compare tags only after an invalidation.
    """
    keys = [hashlib.sha256(b"%d %d" % (content_bytes, n)).digest() for n in range(count)]
    await publish_under(bench, keys, content_bytes)
    async with bench.cache() as cache:
        await cache.epochs.invalidate(["op:another"])
    return keys


async def publish_under(bench: Bench, keys: list[bytes], content_bytes: int) -> None:
    """Publishes one program under each key as a frontend does, with a blob."""
    content = os.urandom(content_bytes)
    blob = os.urandom(256)
    sha256 = hashlib.sha256(blob).digest()
    variant = UnsignedVariant(content, (BlobRef(sha256, len(blob)),), tags=TAGS)
    async with bench.cache() as cache:
        await cache.put_blobs({sha256: blob})
        for first in range(0, len(keys), _AT_ONCE):
            await asyncio.gather(
                *(_publish_one(cache, key, variant) for key in keys[first : first + _AT_ONCE])
            )


async def _publish_one(cache: KernelCache, key: bytes, variant: UnsignedVariant) -> None:
    lease = await cache.acquire(key, key.hex(), 30)
    if lease is None:
        raise RuntimeError("expected a lease on a new program; another process holds it")
    published = await cache.publish(lease, [variant])
    if published.value != "OK":
        raise RuntimeError(f"publishing gave {published.value}")


@contextlib.contextmanager
def running_gateways(
    bench: Bench, processes: int = 1, **settings: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Gateways on one port; the address, and the ids of the processes that serve."""
    with (
        reserved_port() as port,
        _running_gateways(bench, f"127.0.0.1:{port}", processes, settings) as pids,
    ):
        yield f"127.0.0.1:{port}", pids


@contextlib.contextmanager
def _running_gateways(
    bench: Bench, address: str, processes: int, settings: dict[str, str]
) -> Iterator[tuple[int, ...]]:
    logs = bench.folder / f"gateways-{address}.log"
    environment = {
        **bench.environment,
        "KERNELFARM_FRONTEND_LISTEN": address,
        "KERNELFARM_FRONTEND_PROCESSES": str(processes),
        **{f"KERNELFARM_{name.upper()}": value for name, value in settings.items()},
    }
    with logs.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "frontend_svc"], env=environment, stderr=log
        )
    try:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        # A parent restarts gateways only after all have served; before, the end of one ends all.
        reported = b"gateways_serving" if processes > 1 else b""
        while listeners(address) < processes or reported not in logs.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"gateways did not start:\n{logs.read_text()[-4000:]}")
            time.sleep(0.05)
        yield serving_pids(process.pid) if processes > 1 else (process.pid,)
    finally:
        process.terminate()
        status = process.wait(_STOP_TIMEOUT_S)
    if status:
        raise RuntimeError(f"gateways ended with {status}:\n{logs.read_text()[-4000:]}")


def listeners(address: str) -> int:
    """How many sockets listen at an address of this machine: one for each gateway."""
    port = int(address.rpartition(":")[2])
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table.splitlines()]
    return sum(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in sockets)


def serving_pids(parent: int) -> tuple[int, ...]:
    """The process ids of the gateways that a parent restarts."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return tuple(int(child) for child in children)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time of the processes since they started."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def lookup_request(key: bytes) -> bytes:
    """The request of a client that checks signatures, serialized."""
    return api.LookupRequest(key=key, wants_signed=True).SerializeToString()


def looked_up(address: str, key: bytes) -> api.LookupResponse | None:
    """The response to one look-up by a gRPC client; None if the program is not found."""
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, api.LookupResponse] = channel.unary_unary(
            LOOKUP, response_deserializer=api.LookupResponse.FromString
        )
        try:
            return call(lookup_request(key), wait_for_ready=True, timeout=30)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            return None
