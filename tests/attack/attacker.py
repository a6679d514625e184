"""One attacker: `python -m tests.attack.attacker ENDPOINT ATTACK SECONDS`, the token on stdin.

Sends serialized messages from many threads, each with a connection of its own, and ends with one
line of JSON: calls by status, and its own processor time. It has the lowest priority, because a
real attacker sends from another machine.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from kernelfarm.service.priority import yield_to_all
from tests.attack.attacks import Attack, attack_named
from tests.attack.wire import WireCaller
from tests.support.hostile_requests import numbered


class _Pace:
    """Bounds how many calls of all threads begin in a second."""

    def __init__(self, calls_per_s: float) -> None:
        self._numbers = itertools.count()
        self._calls_per_s = calls_per_s
        self._began_s = time.monotonic()

    def wait(self) -> None:
        """Returns when the next call may begin."""
        due_s = self._began_s + next(self._numbers) / self._calls_per_s
        time.sleep(max(0.0, due_s - time.monotonic()))


def attack(endpoint: str, what: Attack, token: str, seconds: float) -> dict[str, int]:
    """Attacks for some seconds; returns calls by status."""
    data = numbered(what.make())
    pace, statuses, lock = _Pace(what.calls_per_s), Counter[str](), threading.Lock()
    ends_s = time.monotonic() + seconds

    def one_caller() -> None:
        with WireCaller(endpoint, what.timeout_s) as caller:
            while time.monotonic() < ends_s:
                pace.wait()
                with lock:
                    message = data()
                timeout_s = min(what.timeout_s, max(0.1, ends_s - time.monotonic()))
                status = caller.call(what.method, message, token, timeout_s)
                with lock:
                    statuses[status] += 1

    _run_in_threads(one_caller, what.callers)
    return dict(statuses)


def _run_in_threads(work: Callable[[], None], number: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    yield_to_all(0)
    endpoint, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    statuses = attack(endpoint, attack_named(name), sys.stdin.readline().strip(), seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"calls": statuses, "cpu_s": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
