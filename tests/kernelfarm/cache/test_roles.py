"""The users of deploy/redis/cache-users.acl: each may do its work, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kernelfarm.cache import (
    EdgeCache,
    KernelCache,
    Lease,
    PublishStatus,
    Space,
    UnsignedVariant,
    WorkerCache,
    tuning_records,
)
from kernelfarm.cache.embedded import ServerProgram, ServerRole, server_command
from kernelfarm.cache.farm_reports import FarmReports, QueueReport
from kernelfarm.cache.key_index import KeyIndex
from kernelfarm.cache.quotas import Quotas
from kernelfarm.cache.records import WorkerReport
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.sweeper import Sweeper
from kernelfarm.cache.tuning_records import TuningRecords
from kernelfarm.errors import UnavailableError
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.tuning import TuningSubject
from tests.support.redis_process import ONCE, answers, server_process

USERS = Path(__file__).parents[3] / "deploy" / "redis" / "cache-users.acl"
ROLES = ("worker", "edge", "frontend", "sweeper", "reader", "operator")
KEY = hashlib.sha256(b"a key").digest()
NAMES = RedisKeys("default")
TENANTS = RedisKeys("default/acme", b"salt")
TAG = "op:aten.gelu.default"
QUEUE = QueueReport("cpu", 1, 0, 0)


@pytest.fixture(scope="module")
def guarded(program: ServerProgram, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a server with these users; the password of each is its name."""
    folder = tmp_path_factory.mktemp("acl")
    text = USERS.read_text()
    for role in ROLES:
        text = text.replace(
            f"#{role.upper()}_SHA256", f"#{hashlib.sha256(role.encode()).hexdigest()}"
        )
    (folder / "users.acl").write_text(text)
    command = server_command(program, ServerRole.CACHE, folder, folder / "s", 0)
    flags = ("--aclfile", str(folder / "users.acl"))
    with (
        raw_as("operator", f"{folder}/s") as operator,
        server_process([*command, *flags], folder / "log", lambda: answers(operator)),
    ):
        yield f"{folder}/s"


def raw_as(role: str | None, path: str) -> redis.Redis:
    """A client that tries once."""
    return redis.Redis(unix_socket_path=path, username=role, password=role, retry=ONCE)


def url_of(role: str, path: str) -> str:
    return f"unix://{role}:{role}@{path}"


@pytest.mark.parametrize("namespace", ["default", "default/acme"])
async def test_every_role_may_do_its_work(  # noqa: PLR0915 -- one statement for each call
    guarded: str, namespace: str
) -> None:
    blob = b"a binary" * 99
    blobs = {hashlib.sha256(blob).digest(): blob}
    variant = UnsignedVariant(b"v", (blob_ref(blob),), tags=(TAG, "toolchain:cpu@0123"))
    with raw_as("operator", guarded) as raw:
        raw.acl_log_reset()
    async with EdgeCache(url_of("edge", guarded), space=Space.KERNELS) as farm:
        edge = farm.for_namespace(namespace)
        assert not (await edge.find(KEY)).is_slow
        (queued,) = await edge.acquire_queued({KEY: ""}, "edge", 30)
        assert queued is not None
        await edge.put_jobs({KEY: b"job"})
        assert await edge.renew_all([queued, queued]) == [True, True]
        assert min(await edge.lapse_s({KEY: "", b"other": ""})) < 0
        workers = WorkerCache(url_of("worker", guarded)).for_namespace(namespace)
        workers.report(WorkerReport("w", "cpu", "cpu@0123", True))
        adopted = workers.adopt(Lease(KEY, "worker", queued.fence, 30, 0))
        assert adopted is not None
        assert workers.get_jobs([KEY]) == [b"job"]
        assert workers.renew(adopted.lease)
        counts = {"processor_ms": 1}
        published = workers.publish(adopted.lease, [variant], contents=blobs, counts=counts)
        assert published is PublishStatus.OK
        workers.close()
        await edge.wait(KEY, 0.1)
        assert (await edge.lookup(KEY)).is_hit
        assert await farm.for_namespace("default/beta").copy_blobs(edge, blobs)
        assert await edge.worker_reports()
    async with KernelCache(url_of("frontend", guarded), space=Space.PROGRAMS) as farm:
        frontend = farm.for_namespace(namespace)
        lease = await frontend.acquire(KEY, "frontend", 30)
        assert lease is not None
        await frontend.put_blobs(blobs)
        assert await frontend.publish(lease, [variant]) is PublishStatus.OK
        parts = {"graph": "g", "operators": "o", "calls": "c", "target": "t"}
        for space in (Space.PROGRAMS, Space.TRACES):
            index = KeyIndex(frontend.client, frontend.redis_keys, space)
            await index.add(KEY, parts)
            assert await index.parts(KEY) == parts
            await index.nearest(b"x" * 32, parts)
        await frontend.advertise(["frontend@1"])
        epoch = await frontend.epochs.acknowledge("gateway", await frontend.epochs.current())
        assert await frontend.epochs.invalidations_after(epoch) == []
        await frontend.epochs.wait_for_invalidation(epoch, 0.001)
        (found,) = (await frontend.lookup(KEY)).variants
        await frontend.refresh(KEY, found)
        assert await frontend.get_blobs(list(blobs)) == [blob]
        await _invalidate_as_gateway(frontend, guarded)
    async with KernelCache(
        url_of("reader", guarded), space=Space.PROGRAMS, may_write=False
    ) as farm:
        reader = farm.for_namespace(namespace)
        assert (await reader.lookup(KEY)).is_hit
        assert await reader.get_blobs(list(blobs)) == [blob]
    async with KernelCache(url_of("sweeper", guarded), space=Space.PROGRAMS) as sweeper:
        work = Sweeper(sweeper.client, namespace, 1e9)
        assert (await work.sweep()).entries == 2
        assert await work.usage()
        assert await work.count_dependents(Space.KERNELS, frozenset([TAG])) == 1
    with raw_as("operator", guarded) as raw:
        assert raw.acl_log() == [], "the server records refusals like intrusions"


async def _invalidate_as_gateway(frontend: KernelCache, guarded: str) -> None:
    """Invalidates, applies the invalidation, and leaves; makes the epoch table look old."""
    bumped = await frontend.epochs.invalidate(["op:other"])
    await frontend.epochs.acknowledge("gateway", bumped)
    with raw_as("operator", guarded) as raw:
        raw.hset(frontend.redis_keys.epochs, "@born", 0)
    await frontend.epochs.wait_for_gateways(bumped)
    await frontend.epochs.leave("gateway")


@pytest.mark.parametrize("namespace", ["default", "default/acme"])
async def test_the_frontend_reads_what_its_page_shows(guarded: str, namespace: str) -> None:
    worker = WorkerCache(url_of("worker", guarded))
    worker.report(WorkerReport("w", "cpu", "cpu@0123", True))
    worker.close()
    async with KernelCache(url_of("edge", guarded), space=Space.KERNELS) as edge:
        await FarmReports(edge.client, edge.redis_keys).report_queues("edge", [QUEUE])
    async with KernelCache(url_of("frontend", guarded), space=Space.PROGRAMS) as farm:
        frontend = farm.for_namespace(namespace)
        reports = FarmReports(frontend.client, frontend.redis_keys)
        assert await reports.queues() == [QUEUE]
        assert await reports.failures(Space.PROGRAMS, 10) == []
        assert [report.worker for report in await frontend.worker_reports()] == ["w"]
        index = KeyIndex(frontend.client, frontend.redis_keys, Space.PROGRAMS)
        await index.add(KEY, {"target": "t"})
        assert [found.key for found in await index.recent(0, 1)] == [KEY]


async def test_a_frontend_counts_what_tenants_hold_and_have_in_flight(guarded: str) -> None:
    async with KernelCache(url_of("frontend", guarded), space=Space.PROGRAMS) as farm:
        counted = farm.for_namespace("default/beta", b"salt")
        quotas = Quotas(counted.client, counted.redis_keys)
        assert await quotas.start_compile("a", 30, 1)
        assert not await quotas.start_compile("another", 30, 1)
        assert await quotas.compiles_in_flight() == 1
        await quotas.end_compile("a")
        assert (await quotas.usage()).entries == 0


@pytest.mark.parametrize("namespace", ["default", "default/beta"])
async def test_a_frontend_keeps_reports_of_times(
    guarded: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_records, "MAX_TUNING_RECORDS", 1)
    async with KernelCache(url_of("frontend", guarded), space=Space.PROGRAMS) as farm:
        frontend = farm.for_namespace(namespace)
        records = TuningRecords(frontend.client, frontend.redis_keys)
        for number in range(2):  # the second record replaces the first one
            subject = TuningSubject(bytes([number]) * 32, "a chip", 2)
            assert (await records.find(subject, "a", can_measure=True)).may_measure
            assert (await records.add(subject, "a" * 32, [2, 1])).winner == 1
            assert await records.read(subject)


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("worker", NAMES.tuning(KEY)),
        ("edge", TENANTS.tuning_index),
        ("worker", NAMES.entry(Space.PROGRAMS, KEY)),
        ("edge", NAMES.entry(Space.PROGRAMS, KEY)),
        ("frontend", NAMES.entry(Space.KERNELS, KEY)),
        ("reader", NAMES.entry(Space.KERNELS, KEY)),
        ("reader", NAMES.entry(Space.PROGRAMS, KEY)),
        ("reader", NAMES.epochs),
        ("worker", NAMES.usage),
        ("worker", TENANTS.entry(Space.PROGRAMS, KEY)),
        ("worker", TENANTS.compiles),
        ("edge", TENANTS.entry(Space.PROGRAMS, KEY)),
        ("edge", TENANTS.quota_usage),
        ("frontend", TENANTS.entry(Space.KERNELS, KEY)),
        ("sweeper", TENANTS.compiles),
        ("reader", TENANTS.entry(Space.PROGRAMS, KEY)),
        ("worker", "elsewhere"),
        ("frontend", "elsewhere"),
    ],
)
def test_no_role_writes_keys_of_another(guarded: str, role: str, key: str) -> None:
    with raw_as(role, guarded) as raw, pytest.raises(redis.exceptions.NoPermissionError):
        raw.hset(key, "order", "")


@pytest.mark.parametrize("role", ["worker", "frontend"])
def test_scripts_do_not_bypass_the_roles(guarded: str, role: str) -> None:
    other = Space.PROGRAMS if role == "worker" else Space.KERNELS
    entry = NAMES.entry(other, KEY)
    with raw_as(role, guarded) as raw, pytest.raises(redis.exceptions.ResponseError):
        raw.eval("return redis.call('DEL', ARGV[1])", 0, entry)


@pytest.mark.parametrize("role", ROLES[:-1])
@pytest.mark.parametrize("command", ["FLUSHALL", "CONFIG GET *", "KEYS *", "ACL LIST", "SHUTDOWN"])
def test_no_role_may_administer_the_server(guarded: str, role: str, command: str) -> None:
    with raw_as(role, guarded) as raw, pytest.raises(redis.exceptions.NoPermissionError):
        raw.execute_command(*command.split())


async def test_a_worker_cannot_publish_programs(guarded: str) -> None:
    async with KernelCache(url_of("worker", guarded), space=Space.PROGRAMS) as cache:
        with pytest.raises(UnavailableError, match=r"permission|NOPERM|ACL"):
            await cache.lookup(KEY)


def test_a_connection_without_a_password_is_refused(guarded: str) -> None:
    with raw_as(None, guarded) as raw, pytest.raises(redis.exceptions.AuthenticationError):
        raw.ping()
