"""Names: RocketMQ's namespaces stand before a name, as `namespace%name`, and behind the mark of dead letters."""

from __future__ import annotations

import hashlib
from typing import Any

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.domain.limits import MAX_GROUP_NAME
from broker.rocketmq.protocol import definition_pb2

_SEPARATOR = "%"
_DIGITS = 16


def name_of(resource: Any, namespace: str) -> str:
    """The name here of a topic or group; `namespace` is the caller's, which some clients leave out of resources."""
    name, own = str(resource.name), resource.resource_namespace or namespace
    if not own:
        return name
    mark = DEAD_LETTER_PREFIX if name.startswith(DEAD_LETTER_PREFIX) else ""
    return f"{mark}{own}{_SEPARATOR}{name.removeprefix(mark)}"


def resource_of(name: str, namespace: str) -> Any:
    """A topic or group as a client of a namespace knows it."""
    mark = DEAD_LETTER_PREFIX if name.startswith(DEAD_LETTER_PREFIX) else ""
    prefix = f"{mark}{namespace}{_SEPARATOR}"
    if namespace and name.startswith(prefix):
        return definition_pb2.Resource(resource_namespace=namespace, name=mark + name.removeprefix(prefix))
    return definition_pb2.Resource(name=name)


def producer_group_of(topic: str) -> str:
    """The producer group of transactions on a topic; it has the same name, as far as that is not too long for one."""
    if len(topic) <= MAX_GROUP_NAME:
        return topic
    digest = hashlib.blake2b(topic.encode(), digest_size=_DIGITS // 2).hexdigest()
    return f"{topic[: MAX_GROUP_NAME - _DIGITS - 1]}-{digest}"
