"""Names: RocketMQ's namespaces precede a name, as `namespace%name`, after the prefix of dead letter topics."""

from __future__ import annotations

import hashlib
from typing import Any

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.domain.limits import MAX_GROUP_NAME
from broker.rocketmq.protocol import definition_pb2

_SEPARATOR = "%"
_DIGITS = 16


def name_of(resource: Any, namespace: str) -> str:
    """The name in halfmq of a topic or group; `namespace` is the caller's, which some clients omit from resources."""
    name, own = str(resource.name), resource.resource_namespace or namespace
    if not own:
        return name
    mark = DEAD_LETTER_PREFIX if name.startswith(DEAD_LETTER_PREFIX) else ""
    return f"{mark}{own}{_SEPARATOR}{name.removeprefix(mark)}"


def resource_of(name: str, namespace: str) -> Any:
    """A topic or group as named by a client of a namespace."""
    mark = DEAD_LETTER_PREFIX if name.startswith(DEAD_LETTER_PREFIX) else ""
    prefix = f"{mark}{namespace}{_SEPARATOR}"
    if namespace and name.startswith(prefix):
        return definition_pb2.Resource(resource_namespace=namespace, name=mark + name.removeprefix(prefix))
    return definition_pb2.Resource(name=name)


def producer_group_of(topic: str) -> str:
    """The producer group of transactions on a topic; it has the topic's name, shortened if necessary."""
    if len(topic) <= MAX_GROUP_NAME:
        return topic
    digest = hashlib.blake2b(topic.encode(), digest_size=_DIGITS // 2).hexdigest()
    return f"{topic[: MAX_GROUP_NAME - _DIGITS - 1]}-{digest}"
