"""Children of the fork server are like new processes that have imported PyTorch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.farm import TIMEOUT_S
from tests.support.torch_children import run_python, start_python

FACTS = """
import json, os, sys, threading
facts = {
    "imported": sorted({"torch._dynamo", "kernelfarm", "grpc"} & sys.modules.keys()),
    "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
    "streams": sorted(os.listdir("/proc/self/fd"))[:-1],  # the last one is that of the list
    "is_own_session": os.getsid(0) == os.getpid(),
    "name": __name__,
    "arguments": sys.argv[1:],
    "path": sys.path[0],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
}
import random, tempfile, uuid
import numpy, torch
facts["drawn"] = [random.random(), numpy.random.rand(), tempfile.mktemp(), str(uuid.uuid4())]
facts["drawn by torch"] = torch.rand(()).item()
print(json.dumps(facts))
"""
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def facts_of(script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    done = run_python((script, *arguments), {**os.environ, **environment}, timeout_s=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_child_is_like_a_new_process_that_imported_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = facts_of("-c", FACTS, "one", "two", KERNELFARM_MODEL="a@1")
    # PyTorch calls `kernelfarm.autoload` when it is imported.
    assert facts["imported"] == ["kernelfarm", "torch._dynamo"]
    assert (facts["threads"], facts["streams"]) == ([1, 1], ["0", "1", "2"])
    assert facts["is_own_session"]
    assert (facts["name"], facts["arguments"]) == ("__main__", ["one", "two"])
    assert (facts["path"], facts["folder"]) == ("", str(tmp_path))
    assert facts["environment"] == {**os.environ, "KERNELFARM_MODEL": "a@1"}


def test_children_draw_other_numbers_and_names_but_torch_the_same() -> None:
    first, second = (facts_of("-c", FACTS) for _ in range(2))
    assert len({*first["drawn"], *second["drawn"]}) == 8
    assert first["drawn by torch"] == second["drawn by torch"]  # its seed is a constant


def test_scripts_and_modules_run_as_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "scripts" / "facts.py"
    path.parent.mkdir()
    path.write_text(FACTS)
    facts = facts_of(str(path), "one")
    assert (facts["name"], facts["arguments"]) == ("__main__", ["one"])
    assert facts["path"] == str(path.parent)
    facts = facts_of("-m", "scripts.facts", "one")
    assert (facts["name"], facts["arguments"]) == ("__main__", ["one"])
    assert facts["path"] == str(tmp_path)


ENDS = {
    "end": "pass",
    "status": "sys.exit(7)",
    "message": "raise SystemExit('planned')",
    "error": "def f():\n    raise ValueError('planned') from KeyError('cause')\nf()",
    "syntax": "eval('1 +')",
    "interrupt": "import signal; signal.raise_signal(signal.SIGTERM)",
    "abort": "os.abort()",
}
PRELUDE = """
import atexit, os, sys, threading, time
atexit.register(lambda: print("at exit"))
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""


@pytest.mark.parametrize("end", ENDS)
def test_a_child_ends_as_a_new_process_does(end: str) -> None:
    arguments = ("-c", PRELUDE + ENDS[end])
    child = run_python(arguments, timeout_s=TIMEOUT_S)
    other = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stdout, child.stderr) == (
        other.returncode,
        other.stdout,
        other.stderr,
    )


def test_a_child_that_is_killed_says_so() -> None:
    with start_python(("-c", "print('ready', flush=True); input()"), **PIPES) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.kill()
        assert child.wait(TIMEOUT_S) == child.poll() == -signal.SIGKILL


def test_a_child_that_takes_too_long_is_killed() -> None:
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(1e6)"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_python(("-c", script), timeout_s=2)
    assert caught.value.stdout is not None
    assert not psutil.pid_exists(int(caught.value.stdout))


def test_two_children_at_once_have_their_own_input_and_output() -> None:
    script = "import os, sys; print(sys.argv[1], *map(str.strip, sys.stdin)); os.write(2, b'e')"
    streams = {**PIPES, "stderr": subprocess.PIPE}
    with (
        start_python(("-c", script, "a"), **streams) as first,
        start_python(("-c", script, "b"), **streams) as second,
    ):
        assert first.pid != second.pid
        for child, name in ((second, "b"), (first, "a")):
            output, errors = child.communicate(f"1\n2{name}\n", TIMEOUT_S)
            assert (output, errors[:1]) == (f"{name} 1 2{name}\n", "e")
            assert child.returncode == 0


@pytest.mark.parametrize(
    ("options", "environment"),
    [(["-X", "dev"], {}), ([], {"PYTHONHASHSEED": "7"}), ([], {"OMP_NUM_THREADS": "1"})],
)
def test_what_acts_at_the_start_of_a_process_gets_a_new_one(
    options: list[str], environment: dict[str, str]
) -> None:
    script = "import sys; print('torch' in sys.modules)"
    done = run_python((*options, "-c", script), {**os.environ, **environment})
    assert done.stdout == "False\n"


def test_the_server_and_the_client_have_other_hash_seeds() -> None:
    done = run_python(("-c", "print(hash('seed'))"))
    assert int(done.stdout) != hash("seed")
