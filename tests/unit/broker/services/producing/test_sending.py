"""Ordinary messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.message import Message
from broker.errors import InvalidArgument, NotFound, Overloaded, StorageUnavailable
from broker.ports.log import Duplicate, RecallWork, SendWork
from broker.services.positions import Positions
from broker.services.producing.sending import UNKNOWN_OFFSET, OrdinaryMessage, SendService, Sent
from broker.services.producing.validation import MessageValidator
from broker.services.wakeups import Wakeups
from unit.broker.services.fakes import FakeClock, FakeNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.place import Place
    from broker.errors import BrokerError


class Log:
    """Appends to the first queue of a topic that there is; the first answers may be written down."""

    def __init__(self, names: FakeNames) -> None:
        self.names = names
        self.sent: list[bytes] = []
        self.answers: dict[bytes, list[Place | Duplicate | BrokerError]] = {}

    async def send(self, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        return [self._send(item) for item in work]

    def _send(self, item: SendWork) -> Place | Duplicate | BrokerError:
        if self.answers.get(item.message.body):
            return self.answers[item.message.body].pop(0)
        topic = next((each for each in self.names.topics.values() if each.topic_id == item.topic_id), None)
        if topic is None:
            return NotFound("gone", reason="TOPIC_NOT_FOUND", field="topic")
        self.sent.append(item.message.body)
        return topic.queue_ids[0], len(self.sent) - 1

    async def recall(self, work: Sequence[RecallWork]) -> list[int | BrokerError]:
        return [item.position for item in work]


class World:
    def __init__(self, *topics: str) -> None:
        self.names = FakeNames(*topics)
        self.log = Log(self.names)
        self.wakeups = Wakeups()
        validator = MessageValidator(self.names.catalog(), FakeClock())
        self.service = SendService(self.log, validator, Positions(self.names), self.wakeups)

    async def send(self, *messages: OrdinaryMessage | BrokerError) -> list[Sent | BrokerError]:
        return await self.service.send(messages)


def message(body: bytes, group: str | None = None, topic: str = "orders") -> OrdinaryMessage:
    return OrdinaryMessage(None, Message(topic, body, message_group=group))


async def test_positions_stand_where_their_messages_stood() -> None:
    world = World("orders")
    wrong = InvalidArgument("no", field="body")
    first, refused, missing, second = await world.send(
        message(b"a"), wrong, message(b"b", topic="missing"), message(b"c")
    )
    assert isinstance(first, Sent)
    assert isinstance(second, Sent)
    assert (first.position.offset, second.position.offset) == (0, 1)
    assert isinstance(refused, InvalidArgument)
    assert refused.field == "messages[1].body"
    assert isinstance(missing, NotFound)


async def test_a_successor_does_not_pass_a_message_that_failed_temporarily() -> None:
    world = World("orders")

    async def find_topic(name: str) -> None:
        raise failures.pop()

    failures, find = [StorageUnavailable("away")], world.names.find_topic
    world.names.find_topic = lambda name: find_topic(name) if failures else find(name)  # type: ignore[method-assign]
    outcomes = await world.send(message(b"a1", "a"), message(b"b1", "b"), message(b"a2", "a"), message(b"none"))
    assert [type(outcome) for outcome in outcomes] == [StorageUnavailable, Sent, StorageUnavailable, Sent]
    assert world.log.sent == [b"b1", b"none"]


async def test_nor_does_it_where_the_topic_was_made_again_elsewhere() -> None:
    world = World("orders")
    await world.send(message(b"before"))
    world.names.make_topic("orders")
    world.log.answers[b"a1"] = [Overloaded("too much", retry_after=1)]
    outcomes = await world.send(message(b"a1", "a"), message(b"a2", "a"), message(b"b1", "b"))
    assert [type(outcome) for outcome in outcomes] == [Overloaded, Overloaded, Sent]
    assert world.log.sent == [b"before", b"b1"]


async def test_a_duplicate_leads_to_the_first_one() -> None:
    world = World("orders")
    world.log.answers[b"again"] = [Duplicate(bytes(16), 2, (10, 40))]
    (outcome,) = await world.send(message(b"again"))
    assert isinstance(outcome, Sent)
    assert (outcome.duplicate, outcome.position.offset) == (True, 40)
    assert outcome.position.message_id.endswith(".2")


async def test_a_duplicate_of_long_ago_has_no_offset() -> None:
    world = World("orders")
    world.log.answers[b"again"] = [Duplicate(bytes(16), 0, None)]
    (outcome,) = await world.send(message(b"again"))
    assert isinstance(outcome, Sent)
    assert (outcome.duplicate, outcome.position.offset, outcome.position.topic) == (True, UNKNOWN_OFFSET, "orders")


async def test_a_duplicate_wakes_nobody_and_a_message_does() -> None:
    world = World("orders")
    world.log.answers[b"again"] = [Duplicate(bytes(16), 0, (10, 40))]
    with world.wakeups.listen([1]) as event:
        await world.send(message(b"again"))
        assert not event.is_set()
        await world.send(message(b"new"))
        assert event.is_set()


async def test_recalls_pass_errors_through() -> None:
    wrong = InvalidArgument("no id", field="message_id")
    assert await World().service.recall([(bytes(16), 4), wrong, (bytes(16), 5)]) == [4, wrong, 5]
