"""Names: RocketMQ's namespaces stand before a name, as `namespace%name`."""

from __future__ import annotations

from typing import Any

from broker.rocketmq.protocol import definition_pb2

_SEPARATOR = "%"


def name_of(resource: Any, namespace: str) -> str:
    """The name here of a topic or group; `namespace` is the caller's, which some clients leave out of resources."""
    own = resource.resource_namespace or namespace
    return f"{own}{_SEPARATOR}{resource.name}" if own else str(resource.name)


def resource_of(name: str, namespace: str) -> Any:
    """A topic or group as a client of a namespace knows it."""
    prefix = f"{namespace}{_SEPARATOR}"
    if namespace and name.startswith(prefix):
        return definition_pb2.Resource(resource_namespace=namespace, name=name.removeprefix(prefix))
    return definition_pb2.Resource(name=name)
