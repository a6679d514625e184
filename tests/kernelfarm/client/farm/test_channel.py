"""Channels that one thread closes while another is about to call."""

from __future__ import annotations

import threading

import grpc
import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.farm.channel import FarmChannel, stub_of
from kernelfarm.errors import UnavailableError
from kernelfarm.service.channels import open_blocking_channel
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub

ENDPOINT = "127.0.0.1:1"


def opened() -> grpc.Channel:
    return open_blocking_channel(ENDPOINT, None, "")


@pytest.mark.parametrize("ending", ["close", "pause"])
def test_no_stub_is_made_for_a_channel_that_was_closed_meanwhile(ending: str) -> None:
    """gRPC would crash the process."""
    owner = FarmChannel(opened, ENDPOINT)
    with owner.used() as channel:
        stub_of(CompileServiceStub, channel)
    if ending == "close":
        owner.close()
    else:
        owner.pause()
        owner.resume()
    with pytest.raises(UnavailableError, match="was closed"):
        stub_of(CompileServiceStub, channel)
    owner.close()


def test_after_a_fork_the_next_call_has_a_new_channel() -> None:
    owner = FarmChannel(opened, ENDPOINT)
    with owner.used() as before:
        pass
    owner.pause()
    owner.resume()
    with owner.used() as after:
        assert after is not before
        stub_of(CompileServiceStub, after)
    owner.close()


def test_a_watch_that_begins_while_another_thread_closes_its_client_ends_without_a_crash() -> None:
    for _ in range(100):
        admin = CacheAdmin("127.0.0.1:1")
        begins = threading.Barrier(2)

        def watch(admin: CacheAdmin = admin, begins: threading.Barrier = begins) -> None:
            begins.wait()
            with pytest.raises((UnavailableError, grpc.RpcError)):
                list(admin.watch())

        thread = threading.Thread(target=watch)
        thread.start()
        begins.wait()
        admin.close()
        thread.join(10)
        assert not thread.is_alive()

    with pytest.raises(UnavailableError, match="the channel was closed"):
        list(admin.watch())
