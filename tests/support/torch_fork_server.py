"""A process that has imported PyTorch, and forks a child for each script; see `torch_children`.

It has one thread, runs no PyTorch code, and imports nothing of kernelfarm and no gRPC, so that its
children are like new processes that have imported PyTorch. It ends when its client does.

Each request is one message with four file descriptors: a socket, and the child's standard streams.
The child reads its command line, folder and environment from the socket; its client reads the
child's id from there, and its status once it ended.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

NUMBER_BYTES = 8
IMPORTED = (
    "numpy",
    "torch",
    "torch._dynamo",
    # What the first compilation by a backend of AOT Autograd imports.
    "torch._dynamo.repro.after_aot",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch.export",
    "torch.export._trace",
    # What the client's settings take longest to import.
    "pydantic_settings",
)


def main(control: int) -> None:
    """Serves requests from the socket `control`; in a child, runs its script."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    # Collections in a child would take seconds to copy the pages of all these modules. Therefore
    # they are not freed at its end either, which nanobind reports; see `torch_children`.
    gc.freeze()
    run(*serve(socket.socket(fileno=control)))


def serve(control: socket.socket) -> list[int]:
    """Returns in each child, with the descriptors of its request."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by descriptor of the process
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not control:
                selector.unregister(key.fd)
                _report_end(*running.pop(key.fd))
                os.close(key.fd)
                continue
            _, descriptors, _, _ = socket.recv_fds(control, 1, 4)
            if not descriptors:
                os._exit(0)  # the client has ended
            child = os.fork()
            if child == 0:
                selector.close()
                control.close()
                for descriptor, (_, other) in running.items():
                    os.close(descriptor)
                    other.close()
                return descriptors
            client = socket.socket(fileno=descriptors[0])
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            _send(client, child)
            watched = os.pidfd_open(child)
            running[watched] = child, client
            selector.register(watched, selectors.EVENT_READ)


def _report_end(child: int, client: socket.socket) -> None:
    _, status = os.waitpid(child, 0)
    with client:
        _send(client, status)


def _send(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client may have ended before its child
        client.sendall(number.to_bytes(NUMBER_BYTES, "little"))


def run(connection: int, *streams: int) -> None:
    """Runs the script of a request as the interpreter runs a new process's."""
    with socket.socket(fileno=connection) as client, client.makefile("rb") as lines:
        request = json.loads(lines.readline())
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    sys.modules["numpy"].random.seed()  # `random` and `tempfile` do this by themselves
    sys.modules["__main__"] = script = ModuleType("__main__")
    script.__dict__["__builtins__"] = builtins
    try:
        _run_command_line(request["arguments"], script)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # a new process has no frames of this module
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    else:
        return
    sys.exit(1)


def _run_command_line(arguments: Sequence[str], script: ModuleType) -> None:
    """Runs `-c CODE`, `-m MODULE` or `PATH`, each with arguments."""
    sys.orig_argv[1:] = arguments
    kind, *others = arguments
    if kind == "-c":
        sys.argv[:], sys.path[0] = ["-c", *others[1:]], ""
        exec(compile(others[0], "<string>", "exec"), vars(script))
    elif kind == "-m":
        sys.argv[:], sys.path[0] = ["-m", *others[1:]], str(Path.cwd())
        runpy._run_module_as_main(others[0])  # type: ignore[attr-defined] # what `-m` calls
    else:
        sys.argv[:], sys.path[0] = list(arguments), str(Path(kind).resolve().parent)
        script.__file__ = kind
        exec(compile(Path(kind).read_bytes(), kind, "exec"), vars(script))
