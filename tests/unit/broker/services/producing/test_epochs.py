"""Epochs of sinks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.message import Message
from broker.errors import InvalidArgument, NotFound, Refused
from broker.ports.epochs import NOTHING_ELSE, Epoch, EpochCommitted, EpochWrites, SinkState, SinkWork
from broker.services.producing.epochs import MAX_ATTEMPTS, MAX_POSITION_BYTES, EpochService
from broker.services.producing.validation import HalfTransaction, MessageValidator
from broker.services.wakeups import Wakeups
from unit.broker.services.fakes import FakeClock, FakeNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.errors import BrokerError

EPOCH = Epoch("target", "query", 3)


class Store:
    """Answers as it is told, and notes the work."""

    def __init__(self, *answers: bool | BrokerError) -> None:
        self.answers = list(answers)
        self.work: list[SinkWork] = []

    async def prepare_epoch(self, work: SinkWork) -> bool | BrokerError:
        self.work.append(work)
        return self.answers.pop(0)

    async def commit_epoch(
        self,
        epoch: Epoch,
        attempts: Mapping[bytes, int],
        writes: EpochWrites = NOTHING_ELSE,
        after: int | None = None,
    ) -> EpochCommitted:
        self.writes = writes
        return EpochCommitted(already=False, messages=sum(attempts.values()), end_offsets={(1, 10): 5})

    async def abort_epoch(self, epoch: Epoch) -> bool:
        return epoch.number < 3

    async def delete_sink(self, name: str) -> None:
        raise NotFound(name, reason="SINK_NOT_FOUND")

    async def find_sink(self, name: str) -> SinkState:
        return SinkState(name, "query", 2, 1, 0)


def service(store: Store, names: FakeNames | None = None, wakeups: Wakeups | None = None) -> EpochService:
    catalog = (names or FakeNames("orders")).catalog()
    return EpochService(store, catalog, MessageValidator(catalog, FakeClock()), wakeups or Wakeups())


async def test_nobody_is_asked_about_half_messages_of_an_epoch() -> None:
    store = Store(False)
    assert not await service(store).prepare(EPOCH, b"a", bytes(16), [Message("orders", b"x")])
    assert store.work[0].halves.checked is False


async def test_a_topic_that_was_made_again_elsewhere_is_looked_up_again() -> None:
    names, store = FakeNames("orders"), Store(NotFound("gone", reason="TOPIC_NOT_FOUND"), False)
    sinks = service(store, names)
    await names.find_topic("orders")
    again = names.make_topic("orders")
    await sinks.prepare(EPOCH, b"a", bytes(16), [Message("orders", b"x")])
    assert [work.halves.checked for work in store.work] == [False, False]
    assert store.work[-1].halves.halves[0].topic_id == again.topic_id


async def test_an_epoch_of_another_query_is_refused() -> None:
    with pytest.raises(Refused):
        await service(Store(Refused("another's", reason="SINK_TAKEN"))).prepare(
            EPOCH, b"a", bytes(16), [Message("orders", b"x")]
        )


async def test_dedup_keys_are_refused_by_position() -> None:
    messages = [Message("orders", b"x"), Message("orders", b"y", dedup_key="k")]
    with pytest.raises(InvalidArgument) as refused:
        await service(Store()).prepare(EPOCH, b"a", bytes(16), messages)
    assert refused.value.field == "messages[1].dedup_key"


async def test_committing_wakes_who_waits() -> None:
    wakeups = Wakeups()
    with wakeups.listen([1]) as event:
        assert (await service(Store(), wakeups=wakeups).commit(EPOCH, {b"a": 2, b"b": 1})).messages == 3
        assert event.is_set()


@pytest.mark.parametrize(
    ("epoch", "field"),
    [
        (Epoch("", "query", 1), "epoch.sink"),
        (Epoch("target", "", 1), "epoch.query_id"),
        (Epoch("target", "q" * 101, 1), "epoch.query_id"),
        (Epoch("target", "query", 1 << 63), "epoch.number"),
    ],
)
async def test_an_epoch_that_cannot_be_is_refused(epoch: Epoch, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await service(Store()).commit(epoch, {})
    assert refused.value.field == field


async def test_too_many_attempts_are_refused() -> None:
    with pytest.raises(InvalidArgument) as refused:
        await service(Store()).commit(EPOCH, dict.fromkeys((b"%d" % n for n in range(MAX_ATTEMPTS + 1)), 1))
    assert refused.value.field == "attempts"


@pytest.mark.parametrize("messages", [[1000, 1000, 1000, 1000, 97], [1] * 4097, [0] * 4097])
async def test_a_commit_with_too_many_messages_is_refused(messages: list[int]) -> None:
    sinks = service(Store())
    sinks.check_counts(0, [1000, 1000, 1000, 1000, 96])
    with pytest.raises(InvalidArgument, match=r"4097 .* in several epochs, or store them before") as refused:
        sinks.check_counts(0, messages)
    assert refused.value.field == "transactions"


async def test_an_epoch_is_aborted_without_the_name_of_its_query() -> None:
    assert not await service(Store()).abort(Epoch("target", "", 3))
    assert await service(Store()).abort(Epoch("target", "", 2))


async def test_what_is_written_with_a_commit_is_checked_and_passed_on() -> None:
    store = Store()
    sinks = service(store)
    good = HalfTransaction(bytes(16), [Message("orders", b"a")])
    await sinks.commit(EPOCH, {}, [good], b"here")
    (work,) = store.writes.transactions
    assert (work.transaction_id, work.checked, store.writes.position) == (bytes(16), False, b"here")
    for message, field in (
        (Message("orders", b"a", dedup_key="k"), "transactions[0].messages[0].dedup_key"),
        (Message("orders", b"a", delay=1), "transactions[0].messages[0].delivery"),
        (Message("orders", b""), "transactions[0].messages[0].body"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await sinks.commit(EPOCH, {}, [HalfTransaction(bytes(16), [message])], b"here")
        assert refused.value.field == field
    with pytest.raises(InvalidArgument) as refused:
        await sinks.commit(EPOCH, {}, (), bytes(MAX_POSITION_BYTES + 1))
    assert refused.value.field == "position"


@pytest.mark.parametrize("after", [-2, 7, 8])
async def test_an_epoch_comes_after_an_earlier_one(after: int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await service(Store()).commit(replace(EPOCH, number=7), {}, after=after)
    assert refused.value.field == "after"
    for good in (-1, 0, 6):
        await service(Store()).commit(replace(EPOCH, number=7), {}, after=good)
