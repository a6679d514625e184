"""Ends what a worker of pytest-xdist leaves behind when it crashes: its farms and servers.

They would use the processor until somebody ends them. One that inherited the output of the run
would keep it open, and CI would wait for its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.processes import kill_all

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object | None) -> None:
    """Kills the processes that a crashed worker started."""
    if error is not None:
        kill_all(_started_by(node))


def _started_by(node: WorkerController) -> list[psutil.Process]:
    """The running processes with the environment of a worker, which its children inherit."""
    own = {
        "PYTEST_XDIST_WORKER": node.gateway.id,
        "PYTEST_XDIST_TESTRUNUID": node.workerinput["testrunuid"],
    }
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:  # it has ended, or belongs to another user
            continue
        if own.items() <= environment.items():
            found.append(process)
    return found
