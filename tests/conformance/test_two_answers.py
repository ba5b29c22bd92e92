"""A consumer gives two answers for one delivery, at two brokers, while the COMMIT of one of them is in doubt.

tests/models/leases.pml found it (TWO_ANSWERS); docs/decisions/0021 says why it is left so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pymysql
import pytest

from broker.errors import StaleReceipt
from broker.ports.delivery import NackWork
from broker.storage.engine.session import Session
from conformance.interleaving import await_in_work, unheard
from conformance.world import World, ack, acks, bodies, nacks, of, ok, pull, receipts, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


def nack_meanwhile(monkeypatch: pytest.MonkeyPatch, other: Store, *work: NackWork) -> None:
    """The ack's COMMIT never arrives, and before its repetition the nack is stored."""
    real, met, loop = Session.commit, list[object](), asyncio.get_running_loop()

    def commit(session: Session) -> None:
        if met:
            real(session)
            return
        met.append(session)
        unheard(session)
        session.rollback()
        ok(await_in_work(other.settle(work), loop))
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(Session, "commit", commit)


async def test_a_lease_that_is_there_tells_that_the_message_was_given_back(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(await store.send([sending(topic, "a"), sending(topic, "b")]))
    (delivered,) = await pull(store, group, topic)
    first = receipts([delivered])[0]
    nack_meanwhile(monkeypatch, world.broker("other"), NackWork(first, delay=0))
    (outcome,) = await store.settle([ack(first)])
    assert of(StaleReceipt, outcome).reason == "RECEIPT_STALE"
    assert bodies(await pull(store, group, topic)) == ["a"]


async def test_both_may_be_accepted_and_the_message_comes_again(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(await store.send([sending(topic, "a")]))
    delivered = await pull(store, group, topic)
    nack_meanwhile(monkeypatch, world.broker("other"), *nacks(delivered, delay=0))
    ok(await store.settle(acks(delivered)))
    assert bodies(await pull(store, group, topic)) == ["a"]
