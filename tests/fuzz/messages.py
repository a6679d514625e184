"""Every service, RPC and message type of the farm, found through the protos' descriptors."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message
from google.rpc import status_pb2

import kernelfarm.internal.v1
import kernelfarm.v1

PACKAGES = (kernelfarm.v1, kernelfarm.internal.v1)


@dataclass(frozen=True, slots=True)
class Rpc:
    """One method: its path, its request type, and whether its response is a stream."""

    path: str
    service: str
    name: str
    request: type[Message]
    is_streaming: bool

    @property
    def is_internal(self) -> bool:
        """True for methods of internal services, which clients cannot reach."""
        return self.service.startswith("kernelfarm.internal.")


@lru_cache(maxsize=1)
def all_rpcs() -> tuple[Rpc, ...]:
    """Every method of every service with generated code, new ones included."""
    found = []
    for module in _modules():
        for service in module.DESCRIPTOR.services_by_name.values():
            found += [_rpc(service, method) for method in service.methods]
    return tuple(sorted(found, key=lambda rpc: rpc.path))


def message_class(full_name: str) -> type[Message]:
    """The class of a message by its full name."""
    return _classes()[full_name]


def _rpc(service: Any, method: Any) -> Rpc:
    return Rpc(
        path=f"/{service.full_name}/{method.name}",
        service=service.full_name,
        name=method.name,
        request=message_factory.GetMessageClass(method.input_type),
        is_streaming=method.server_streaming,
    )


@lru_cache(maxsize=1)
def _classes() -> dict[str, type[Message]]:
    modules = (*_modules(), status_pb2)
    return {
        descriptor.full_name: message_factory.GetMessageClass(descriptor)
        for module in modules
        for descriptor in module.DESCRIPTOR.message_types_by_name.values()
    }


def _modules() -> Iterator[Any]:
    for package in PACKAGES:
        for found in pkgutil.iter_modules(package.__path__):
            if found.name.endswith("_pb2"):
                yield importlib.import_module(f"{package.__name__}.{found.name}")
