"""Fuzzes every RPC of a running farm over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import grpc.aio

from kernelfarm.service.channels import channel_options
from tests.fuzz.cases import case_bytes
from tests.fuzz.corpus import keep
from tests.fuzz.farm_call import LONG, Answer, Bounds, call
from tests.fuzz.farm_state import FarmState
from tests.fuzz.messages import Rpc, all_rpcs
from tests.fuzz.valid_messages import valid_messages

SHARES = {
    "ExplainMiss": 24,
    "Optimize": 20,
    "PutTrace": 10,
    "Compile": 8,
    "LookupTrace": 8,
    "ExplainTraceMiss": 8,
    "Lookup": 6,
    "ReadBlobs": 5,
    "BuildKernels": 4,
    "GetUsage": 2,
}
"""The weight of an RPC, by default 1: more if it parses more, less if accepted messages take the
time of a toolchain."""

_LOOK_EVERY_S = 0.5
DEFAULT_BOUNDS = Bounds()
Change = Callable[[Rpc, bytes, Random], bytes]


@dataclass(frozen=True, slots=True)
class FarmPlan:
    """Messages and their destination; `change` may sign or complete a mutated message."""

    seed: int
    messages: int
    seconds: float
    endpoint: str
    failures: Path
    state: FarmState | None = None
    rpcs: tuple[Rpc, ...] = ()
    jobs: int = 8
    bounds: Bounds = DEFAULT_BOUNDS
    change: Change = lambda rpc, data, random: data


@dataclass(slots=True)
class FarmFindings:
    """Responses by RPC."""

    seed: int
    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, list[str]] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def sent(self) -> int:
        return sum(len(times) for times in self.times_s.values())

    def add(self, rpc: Rpc, answer: Answer) -> None:
        is_long = rpc.name in LONG and answer.status == "OK"
        kind = f"{rpc.name} (done)" if is_long else rpc.name
        self.statuses[kind][answer.status] += 1
        self.times_s[kind].append(answer.took_s)

    def add_failure(self, fault: str, path: str) -> None:
        """Stores a failure, and prints the first of its kind at once: a run may take hours."""
        if fault not in self.failures:
            print(f"FAILED {fault}\n       {path}", flush=True)
        self.failures.setdefault(fault, []).append(path)


def fuzz_farm(plan: FarmPlan) -> FarmFindings:
    """Sends messages until their number or the time is reached, or an interrupt."""
    findings = FarmFindings(plan.seed)
    began_s = time.monotonic()
    try:
        asyncio.run(_fuzz(plan, findings, began_s))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    findings.took_s = time.monotonic() - began_s
    return findings


async def _fuzz(plan: FarmPlan, findings: FarmFindings, began_s: float) -> None:
    async with contextlib.AsyncExitStack() as stack:
        channels = await _channels(plan, stack)
        numbers = iter(range(plan.messages))
        senders = [
            _send(plan, channels, numbers, began_s + plan.seconds, findings)
            for _ in range(plan.jobs)
        ]
        looking = asyncio.create_task(_look(plan.state))
        await asyncio.gather(*senders)
        looking.cancel()


async def _channels(
    plan: FarmPlan, stack: contextlib.AsyncExitStack
) -> dict[str, grpc.aio.Channel]:
    """A channel for each service: public ones by the endpoint, internal ones by sockets."""
    internal = plan.state.addresses() if plan.state else {}
    public = grpc.aio.insecure_channel(plan.endpoint, options=channel_options())
    channels = {rpc.service: public for rpc in plan.rpcs or all_rpcs() if not rpc.is_internal}
    await stack.enter_async_context(public)
    for service, address in internal.items():
        channel = grpc.aio.insecure_channel(address, options=channel_options())
        channels[service] = await stack.enter_async_context(channel)
    return channels


async def _send(
    plan: FarmPlan,
    channels: dict[str, grpc.aio.Channel],
    numbers: Iterator[int],
    until_s: float,
    findings: FarmFindings,
) -> None:
    rpcs = [rpc for rpc in plan.rpcs or all_rpcs() if rpc.service in channels]
    shares = [SHARES.get(rpc.name, 1) for rpc in rpcs]
    for number in numbers:
        if time.monotonic() > until_s:
            return
        rpc, data = message_of(plan, rpcs, shares, number)
        answer = await call(channels[rpc.service], rpc, data, plan.bounds)
        findings.add(rpc, answer)
        if answer.fault:
            path = keep(rpc.request.DESCRIPTOR.full_name, data, plan.failures, rpc.name)
            findings.add_failure(f"{rpc.name}: {answer.fault}", str(path))


def message_of(
    plan: FarmPlan, rpcs: list[Rpc], shares: list[int], number: int
) -> tuple[Rpc, bytes]:
    """The RPC and the bytes of an input number."""
    random = Random(f"{plan.seed}:{number}")
    (rpc,) = random.choices(rpcs, shares)
    full_name = rpc.request.DESCRIPTOR.full_name
    base = random.choice(valid_messages(full_name))
    data = case_bytes(plan.seed, number, base, full_name)
    return rpc, plan.change(rpc, data, random)


async def _look(state: FarmState | None) -> None:
    while state is not None:
        await asyncio.to_thread(state.look)
        await asyncio.sleep(_LOOK_EVERY_S)
