"""A request of a user and the warm-up of the same program, in a whole farm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.calls import compile_at, stub_of
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.small_graphs import slow_request


def test_a_user_takes_the_build_of_a_warm_up_over_and_no_kernel_is_compiled_twice(
    farm: Farm,
) -> None:
    warm_up = slow_request(80)
    warm_up.priority = api.PRIORITY_WARM_UP
    with CacheAdmin(farm.endpoint) as admin, ThreadPoolExecutor(1) as user:
        before = admin.usage().spaces
        with stub_of(farm.endpoint) as stub:
            events = stub.Compile(warm_up, timeout=TIMEOUT_S)
            next(e for e in events if e.stage.stage == "optimize")  # it holds the lease
            waiting = user.submit(compile_at, farm.endpoint, slow_request(80))
            (warmed,) = (e.program for e in events if e.WhichOneof("event") == "program")
        found = waiting.result(TIMEOUT_S).program
        after = admin.usage().spaces
    assert warmed.key == found.key
    assert found.outcome == api.CACHE_OUTCOME_MISS  # it did not wait for the warm-up's build
    jobs = [space.counters.get("jobs", 0) for space in (before[1], after[1])]
    published = [space.counters.get("published", 0) for space in (before[0], after[0])]
    assert (jobs[1] - jobs[0], published[1] - published[0]) == (1, 1)
