"""A process that sends many equal calls: `python -m tests.e2e.burst_client ENDPOINT CALLS LINKS`.

It prints `ready`, waits for a line, and sends all calls at once, a few on each of its connections.
Then it prints the responses as JSON: outcomes, kernel jobs, and distinct programs or failures.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections import Counter

import grpc

from kernelfarm.service.channels import channel_options
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from tests.support.small_graphs import slow_request

CALLS_OF_A_CONNECTION = 10
TIMEOUT_S = 240


async def main(endpoint: str, calls: int, links: int) -> None:
    request = slow_request(links)
    options = [*channel_options(), ("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(endpoint, options=options)
        for _ in range(-(-calls // CALLS_OF_A_CONNECTION))
    ]
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    stubs = [CompileServiceStub(channel) for channel in channels]
    answers = await asyncio.gather(
        *(answer(stubs[number % len(stubs)], request) for number in range(calls))
    )
    outcomes, programs, jobs = Counter(a[0] for a in answers), {a[1] for a in answers}, 0
    jobs = sum(a[2] for a in answers)
    print(json.dumps({"outcomes": outcomes, "programs": sorted(programs), "jobs": jobs}))
    await asyncio.gather(*(channel.close() for channel in channels))


async def answer(stub: CompileServiceStub, request: api.CompileRequest) -> tuple[str, str, int]:
    """Outcome or status, a digest of the program, and the kernel jobs that the call took."""
    try:
        async for event in stub.Compile(request, timeout=TIMEOUT_S):
            if event.WhichOneof("event") == "program":
                program = event.program
                made = (program.plan, *program.artifacts)
                content = b"".join(part.SerializeToString(deterministic=True) for part in made)
                digest = hashlib.sha256(program.key + content).hexdigest()
                return api.CacheOutcome.Name(program.outcome), digest, program.codegen_jobs
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or "", 0
    return "no program", "", 0


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
