"""Where clients are at work: topics of which one gets half of the load, and consumer groups that read several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faults.client import Client, unique

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from faults.history import Place
    from halfmq.v1 import message_pb2

HOT, COLD, DELAYED = "hot", "cold", "delayed"
COLD_TOPICS = 3
SHARE_OF_HOT, SHARE_OF_DELAYED = 0.5, 0.1
MESSAGE_GROUPS = 5
"""Of each topic."""
_APART = 1000
"""More queues than a topic has: so a queue of any topic has a number of its own."""


class Scene:
    """The topics, and the groups with what they read."""

    def __init__(self, client: Client) -> None:
        self.hot = client.make_topic(4)
        self.cold = [client.make_topic(2) for _ in range(COLD_TOPICS)]
        self.delayed = client.make_topic(2)
        self.topics = [self.hot, *self.cold, self.delayed]
        self.groups = {client.make_group(): self.topics, client.make_group(): [self.hot]}
        self.groups[client.make_group()] = [*self.cold, self.delayed]
        self.producers, self.asked = unique("producers"), unique("asked")

    def choose(self, fate: random.Random) -> str:
        """A topic for a message that is not delayed."""
        return self.hot if fate.random() < SHARE_OF_HOT / (1 - SHARE_OF_DELAYED) else fate.choice(self.cold)

    def message_group(self, topic: str, fate: random.Random) -> str:
        """For three messages in ten; empty for the others."""
        return f"{topic}-{fate.randrange(MESSAGE_GROUPS)}" if fate.random() < 0.3 else ""

    def place_of(self, position: message_pb2.LogPosition | message_pb2.LogMessage) -> Place:
        """Where a message lies, among all topics."""
        return self.queue_number(position.topic, position.queue), position.offset

    def queue_number(self, topic: str, queue: int) -> int:
        """The number of a queue among those of all topics."""
        return self.topics.index(topic) * _APART + queue

    def is_of(self, number: int, topics: Iterable[str]) -> bool:
        """Whether a queue is one of these topics."""
        return self.topics[number // _APART] in topics
