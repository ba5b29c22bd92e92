"""What is carried where, in a compacted topic of Kafka: a loop would carry each message again and again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from halfmq_connect.kafka.cluster import ANSWER, QUIET
from halfmq_connect.kafka.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfmq_connect.kafka.cluster import Cluster

__all__ = ["REGISTRY", "Edge", "forget", "note_positions", "note_starts", "noted_positions", "register"]

REGISTRY = "halfmq-bridges"

Edge = tuple[str, str]
"""From a topic to a topic, as "halfmq:identity" or "kafka:name"."""
_POSITIONS, _STARTS = b"positions/", b"starts/"
_OF_BRIDGES = (_POSITIONS, _STARTS)


def register(cluster: Cluster, client: Mapping[str, Any], name: str, edges: Iterable[Edge]) -> None:
    """Writes down what one bridge carries, then reads what all of them do.

    It is written first: of two that begin at the same time at least one sees the other.

    What was written down before under the same name stays: a replica with other topics may be running. `forget` deletes
    it.

    Raises:
        ConfigurationError: Together with others it is a loop; what was written down before is restored then.
        KafkaException: Kafka does not answer, or refuses.
    """
    cluster.create(REGISTRY, 1, cleanup_policy="compact")
    before = dict(cluster.content(REGISTRY, 0)).get(name.encode())
    own = sorted({*edges, *((start, end) for start, end in json.loads(before or b"[]"))})
    _write(cluster, client, name, json.dumps(own).encode())
    known: dict[str, list[Edge]] = {}
    for key, value in cluster.content(REGISTRY, 0):
        if not key.startswith(_OF_BRIDGES):
            known[key.decode()] = [(start, end) for start, end in json.loads(value)] if value else []
    known[name] = own
    for start, end in own:
        if (path := _path(end, start, known)) is not None:
            # A replica with other topics may be running under this name.
            _write(cluster, client, name, before)
            through = sorted({each for each in path if each != name}) or [name]
            msg = (
                f"a loop: {_shown(start)} goes to {_shown(end)}, and from there back, through {', '.join(through)};"
                " each message would be carried again and again. Carry to another topic; if the other one no longer"
                " runs, forget it: halfmq bridge forget"
            )
            raise ConfigurationError(msg, field="topics")


def forget(cluster: Cluster, client: Mapping[str, Any], name: str) -> None:
    """Deletes what is written down of a bridge.

    Raises:
        ConfigurationError: There is nothing.
        KafkaException: Kafka does not answer, or refuses.
    """
    known = dict(cluster.content(REGISTRY, 0)) if REGISTRY in cluster.names() else {}
    if known.get(name.encode()) is None:
        bridges = sorted(key.decode() for key, value in known.items() if value and not key.startswith(_OF_BRIDGES))
        msg = f"there is no {name!r}; there are: {', '.join(bridges) or 'none'}"
        raise ConfigurationError(msg, field="name")
    way, _, bridge = name.partition("/")
    if way == "to-kafka":
        note_positions(cluster, client, bridge, None)
        _write(cluster, client, f"{_STARTS.decode()}{bridge}", None)
    _write(cluster, client, name, None)


def noted_positions(cluster: Cluster, bridge: str) -> str | None:
    """The identity of the topic that a bridge has its positions in; None: it has not begun.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    value = dict(cluster.content(REGISTRY, 0)).get(_POSITIONS + bridge.encode())
    return json.loads(value)[0][1] if value else None


def note_positions(cluster: Cluster, client: Mapping[str, Any], bridge: str, topic_id: str | None) -> None:
    """Writes down in which topic a bridge has its positions; None: it has none.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    # Earlier versions read all that is in the topic, as edges.
    value = None if topic_id is None else json.dumps([["positions", topic_id]]).encode()
    _write(cluster, client, f"{_POSITIONS.decode()}{bridge}", value)


def note_starts(
    cluster: Cluster,
    client: Mapping[str, Any],
    bridge: str,
    wanted: Callable[[Mapping[str, int]], dict[str, int]],
    *,
    anew: bool,
) -> dict[str, int]:
    """Writes down where queues begin that a bridge never carried, for all of its replicas.

    Args:
        cluster: Kafka.
        client: Settings of its client.
        bridge: The bridge's name.
        wanted: What is to be written down, given what is.
        anew: It takes the place of what is.

    Returns:
        All that is written down: an offset by the queue's name.

    Raises:
        KafkaException: Kafka does not answer, or refuses.
    """
    name = f"{_STARTS.decode()}{bridge}"

    def noted() -> dict[str, int]:
        value = dict(cluster.content(REGISTRY, 0)).get(name.encode())
        return {queue: int(offset) for queue, offset in json.loads(value or b"[]")}

    before = {} if anew else noted()
    new = wanted(before)
    # Another replica may write at the same moment.
    while new.keys() - before.keys():
        # As edges have it: earlier versions read all that is in the topic.
        pairs = [[queue, str(offset)] for queue, offset in sorted((new | before).items())]
        _write(cluster, client, name, json.dumps(pairs).encode())
        before = noted()
    return before


def _shown(node: str) -> str:
    return node.replace(":", " ", 1)


def _path(start: str, end: str, known: Mapping[str, list[Edge]]) -> list[str] | None:
    """The bridges on the way from one topic to another; None if there is no way."""
    reached: dict[str, list[str]] = {start: []}
    upcoming = [start]
    while upcoming:
        here = upcoming.pop()
        if here == end:
            return reached[here]
        for name, edges in known.items():
            for first, second in edges:
                if first == here and second not in reached:
                    reached[second] = [*reached[here], name]
                    upcoming.append(second)
    return None


def _write(cluster: Cluster, client: Mapping[str, Any], name: str, value: bytes | None) -> None:
    outcomes: list[KafkaError | None] = []
    producer = Producer({**client, **QUIET, "acks": "all", "message.timeout.ms": int(ANSWER * 1000)})
    producer.produce(REGISTRY, value, name.encode(), on_delivery=lambda error, _: outcomes.append(error))
    cluster.flush(producer)
    error = outcomes[0] if outcomes else KafkaError(KafkaError._TIMED_OUT, f"no answer to a record of {REGISTRY}")
    if error is not None:
        raise KafkaException(error)
