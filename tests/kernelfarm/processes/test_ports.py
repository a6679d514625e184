"""Addresses to listen on."""

from __future__ import annotations

import socket

import pytest

from kernelfarm.errors import CallerError, UnavailableError
from kernelfarm.processes.ports import bound_address


def test_the_error_names_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=address):
            bound_address(address)


@pytest.mark.parametrize("listen", ["50051", "localhost:", ":50051", "host:99999"])
def test_an_address_without_host_and_port_is_refused(listen: str) -> None:
    with pytest.raises(CallerError, match="expected HOST:PORT"):
        bound_address(listen)
