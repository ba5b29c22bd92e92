"""Filters of topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from client_core.arguments import check_text, refuse
from halfmq.v1 import consumer_pb2, message_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Filters", "MessageFilter", "SqlFilter", "TagFilter", "filter_of", "filter_to_wire", "topic_filters"]


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Messages with one of these tags: ``TagFilter("paid || refunded")``.

    Attributes:
        tags: The tags, with ``||`` between them; ``*`` stands for all messages, with and without a tag.
    """

    tags: str

    def __post_init__(self) -> None:
        """Validates the tags.

        Raises:
            ConfigurationError: It is no text, or has an empty tag or one with "|" in it.
        """
        rule = 'names tags with "||" between them, such as "paid || refunded"'
        check_text("TagFilter.tags", self.tags, rule)
        if any(not tag.strip() or "|" in tag for tag in self.tags.split("||")):
            refuse("TagFilter.tags", rule, self.tags)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Messages that match a condition: ``SqlFilter("amount > 100 AND country IN ('CH', 'AT')")``.

    Attributes:
        condition: An SQL92 expression over the properties of a message and the fields that begin with ``halfmq.``, such
            as ``halfmq.tag``. The broker refuses one that it cannot parse.
    """

    condition: str

    def __post_init__(self) -> None:
        """Validates the condition.

        Raises:
            ConfigurationError: It is no text, or empty.
        """
        check_text("SqlFilter.condition", self.condition, "is a condition, such as \"country = 'CH'\"")
        if not self.condition.strip():
            refuse("SqlFilter.condition", "is not blank", self.condition)


MessageFilter: TypeAlias = TagFilter | SqlFilter
"""A filter of either kind."""

Filters: TypeAlias = MessageFilter | Mapping[str, MessageFilter]
"""One filter for every topic, or a mapping for some topics."""


def filter_to_wire(name: str, wanted: object) -> message_pb2.Filter:
    """Makes the wire form of a filter; None: all messages.

    Args:
        name: The argument, as its error is to name it.
        wanted: The filter.

    Raises:
        ConfigurationError: It is no filter.
    """
    if wanted is None:
        return message_pb2.Filter()
    if isinstance(wanted, TagFilter):
        return message_pb2.Filter(tags=wanted.tags)
    if isinstance(wanted, SqlFilter):
        return message_pb2.Filter(sql=wanted.condition)
    refuse(name, "is a TagFilter, a SqlFilter or None", wanted)


def filter_of(found: message_pb2.Filter) -> MessageFilter | None:
    """Reads the wire form of a filter; None: all messages."""
    kind = found.WhichOneof("expression")
    if kind is None:
        return None
    return TagFilter(found.tags) if kind == "tags" else SqlFilter(found.sql)


def topic_filters(name: str, wanted: object, topics: Sequence[str]) -> list[consumer_pb2.TopicFilter]:
    """Makes the wire form of the filters of several topics.

    Args:
        name: The argument, as its error is to name it.
        wanted: One filter for all of the topics, or a mapping that names topics among them; None: none.
        topics: The topics.

    Raises:
        ConfigurationError: It is neither, or names another topic.
    """
    if wanted is None:
        return []
    by_topic: Mapping[object, object] = wanted if isinstance(wanted, Mapping) else dict.fromkeys(topics, wanted)
    for topic in by_topic:
        if topic not in topics:
            refuse(name, f"names only topics that are read, which are {', '.join(topics)}", topic)
    return [
        consumer_pb2.TopicFilter(topic=topic, filter=filter_to_wire(name, by_topic[topic]))
        for topic in dict.fromkeys(topics)
        if topic in by_topic
    ]
