"""Cache and broker behind TLS, configured by their URLs only."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from codegen_svc.celery_app import JobQueue, QueuedGroup, QueuedJob
from codegen_svc.settings import CodegenSettings
from kernelfarm.cache import KernelCache, PublishStatus, Space, UnsignedVariant, WorkerCache
from kernelfarm.errors import UnavailableError
from tests.support.certificates import Authority, Pair
from tests.support.ports import reserved_port
from tests.support.redis_process import ONCE, ServerEndedError, answers, server_process

KEY = hashlib.sha256(b"a kernel").digest()
# The server in the embedded wheel is built without TLS.
SERVER = shutil.which("valkey-server") or shutil.which("redis-server")

pytestmark = pytest.mark.skipif(SERVER is None, reason="no Redis or Valkey server on PATH")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that listens by TLS only; its CA is in the URL."""
    folder = tmp_path_factory.mktemp("redis-tls")
    authority = Authority(folder)
    pair = authority.issue_server()
    with reserved_port() as port:
        yield from _serving_by_tls(folder, port, authority, pair)


def _serving_by_tls(folder: Path, port: int, authority: Authority, pair: Pair) -> Iterator[str]:
    options = {
        "port": 0,
        "tls-port": port,
        "bind": "127.0.0.1",
        "tls-cert-file": pair.cert_file,
        "tls-key-file": pair.key_file,
        "tls-ca-cert-file": authority.ca_file,
        "tls-auth-clients": "no",
        "save": "",
        "dir": folder,
    }
    command = [str(SERVER), *(part for k, v in options.items() for part in (f"--{k}", str(v)))]
    address = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.ca_file}"
    try:
        with (
            redis.Redis.from_url(address, retry=ONCE) as raw,
            server_process(command, folder / "log", lambda: answers(raw)),
        ):
            yield address
    except ServerEndedError as error:
        pytest.skip(f"a server without TLS: {str(error)[-300:]}")


async def test_services_and_workers_reach_a_cache_by_tls(url: str) -> None:
    async with KernelCache(url, space=Space.KERNELS) as cache:
        lease = await cache.acquire(KEY, "owner", 30)
        assert lease is not None
        workers = WorkerCache(url)
        assert workers.publish(lease, [UnsignedVariant(b"v")]) is PublishStatus.OK
        workers.close()
        await cache.wait(KEY, 0.1)
        assert (await cache.lookup(KEY)).is_hit


async def test_a_cache_with_an_untrusted_certificate_is_not_used(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelfarm.cache.connection._HANDSHAKE_TIMEOUT_S", 0.1)
    monkeypatch.setattr("kernelfarm.cache.retry_policy._RETRIES", 1)
    other = f"{url.partition('?')[0]}?ssl_ca_certs={Authority(tmp_path).ca_file}"
    async with KernelCache(other, space=Space.KERNELS) as cache:
        with pytest.raises(UnavailableError, match=r"(?i)certificate"):
            await cache.lookup(KEY)


async def test_jobs_are_queued_in_a_broker_by_tls(url: str) -> None:
    settings = CodegenSettings(broker_url=f"{url}&ssl_cert_reqs=required", signing="off")
    queue = JobQueue(settings)
    await queue.send(QueuedGroup("cpu", "default", (QueuedJob(KEY, 1),)))
    queue.close()
    with redis.Redis.from_url(url) as raw:
        assert raw.llen("cpu") == 1
