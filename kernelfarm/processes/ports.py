"""The addresses of a farm's services."""

from __future__ import annotations

import contextlib
import socket

from kernelfarm.errors import CallerError, UnavailableError


def bound_address(listen: str) -> str:
    """The address to listen on, with port 0 replaced by a free port.

    Raises:
        CallerError: the address is not `HOST:PORT`.
        UnavailableError: the port is in use.
    """
    host, colon, port = listen.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 2**16):
        raise CallerError(
            f"cannot listen on {listen!r}; expected HOST:PORT such as 127.0.0.1:50051"
        )
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {listen}: {error.strerror}; choose another with --listen,"
                " or --listen 127.0.0.1:0 for any free port"
            ) from None
        return f"{host}:{probe.getsockname()[1]}"


def free_ports(number: int) -> tuple[int, ...]:
    """Different free ports on loopback; another program may take one before it is used."""
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.socket()) for _ in range(number)]
        for probe in opened:
            probe.bind(("127.0.0.1", 0))
        return tuple(probe.getsockname()[1] for probe in opened)
