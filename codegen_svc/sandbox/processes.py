"""Which process compiles the next kernel: one that its namespace has used, or a fresh one.

Where its backend allows it, a process takes one kernel of its namespace after the other: a fork
costs as much processor time, in copied memory, as a small kernel. A process never serves two
namespaces, and none that met an error is used again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from codegen_svc.sandbox.connection import Child, End
from codegen_svc.sandbox.hello import Hello
from codegen_svc.sandbox.limits import Limits
from codegen_svc.sandbox.restrictions import MOST_KEPT_PROCESSOR_S
from codegen_svc.sandbox.zygote_process import ZygoteProcess
from kernelfarm.errors import UnavailableError

_MOST_JOBS: Final = 32
# Shorter than its supervisor leaves it waiting.
_MOST_IDLE_S: Final = 20.0
_MOST_GROWTH_BYTES: Final = 256 << 20


class Children:
    """A zygote, which is started again when something of it is lost, and one used child.

    `is_able` is false after it could not be started again.
    """

    def __init__(self, vendor: str, limits: Limits) -> None:
        """Starts the zygote.

        Raises:
            KernelfarmError: the toolchain is missing or does not work; the message says why.
        """
        self._vendor = vendor
        self._limits = limits
        self._zygote: ZygoteProcess | None = ZygoteProcess(vendor, limits)
        self.hello: Hello = self._zygote.hello
        self.is_able = True
        self._kept: Child | None = None
        self._kept_for = ""
        self._first_bytes = 0

    def take(self, namespace: str, *, must_be_fresh: bool) -> Child:
        """A child for one job of a namespace; an empty one gets a child of its own.

        Raises:
            UnavailableError: there is none, and the zygote cannot be started again.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            is_idle = time.monotonic() - kept.idle_since_s > _MOST_IDLE_S
            if not must_be_fresh and self._kept_for == namespace and not is_idle:
                return kept
            kept.close()
        return self._fresh()

    def may_stay(self, child: Child, namespace: str) -> bool:
        """True if the child may wait for another job after its next one."""
        return bool(namespace) and self.hello.takes_many_jobs and child.jobs < _MOST_JOBS - 1

    def give_back(self, child: Child, namespace: str, end: End) -> None:
        """Keeps a child that gave a result, if it is still as good as a fresh one."""
        if child.jobs == 1:
            self._first_bytes = end.memory_bytes
        has_grown = end.memory_bytes - self._first_bytes > _MOST_GROWTH_BYTES
        is_worn = has_grown or child.processor_s > MOST_KEPT_PROCESSOR_S
        if end.is_over or end.tasks != 1 or is_worn:  # what a job left behind ends with it
            child.close()
            return
        self._kept, self._kept_for = child, namespace

    def renew(self) -> None:
        """After something was lost: the next child is one that is forked then.

        Raises:
            UnavailableError: the zygote cannot be started again.
        """
        self.take("", must_be_fresh=True).close()

    def close(self) -> None:
        """Ends them all."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _fresh(self) -> Child:
        if self._zygote is not None and self._zygote.is_whole():
            try:
                return self._zygote.child()
            except OSError:  # it is gone, or hangs; that costs nobody an attempt
                pass
        if self._zygote is not None:
            self._zygote.close(patience_s=0.0)
            self._zygote = None
        return self._from_new_zygote()

    def _from_new_zygote(self) -> Child:
        self.is_able = False
        zygote = ZygoteProcess(self._vendor, self._limits)
        try:
            self._check_same(zygote.hello)
            child = zygote.child()
        except OSError as error:
            zygote.close(patience_s=0.0)
            raise UnavailableError(
                f"the {self._vendor} toolchain's process ends as soon as it starts: {error}"
            ) from error
        except UnavailableError:
            zygote.close()
            raise
        self._zygote, self.is_able = zygote, True
        return child

    def _check_same(self, hello: Hello) -> None:
        """Raises UnavailableError if the toolchain, or what confines it, is another than before."""
        if replace(hello, warm_up_ms=self.hello.warm_up_ms) != self.hello:
            raise UnavailableError(
                f"the {self._vendor} toolchain or its confinement ({hello.level}) is another one"
                " than when this worker started: start the worker again"
            )
