"""A consumer gives two answers for one delivery, at two brokers, while the COMMIT of one of them is in doubt.

tests/models/leases.pml found it (TWO_ANSWERS); docs/decisions/0021 says why it is left so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pymysql
import pytest

from broker.storage.engine.session import Session
from conformance.interleaving import await_in_work, unheard
from conformance.world import World, acks, bodies, nacks, ok, pull, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def test_both_may_be_accepted_and_the_message_comes_again(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(await store.send([sending(topic, "a")]))
    delivered = await pull(store, group, topic)
    other, loop = world.broker("other"), asyncio.get_running_loop()
    real, met = Session.commit, list[object]()

    def commit(session: Session) -> None:
        if met:
            real(session)
            return
        # The ack's COMMIT: it never arrives, and before its repetition the nack is stored.
        met.append(session)
        unheard(session)
        session.rollback()
        ok(await_in_work(other.settle(nacks(delivered, delay=0)), loop))
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(Session, "commit", commit)
    ok(await store.settle(acks(delivered)))
    assert met
    assert bodies(await pull(store, group, topic)) == ["a"]
