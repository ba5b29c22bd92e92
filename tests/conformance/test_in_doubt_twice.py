"""The COMMIT of the repetition gets no answer either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pymysql
import pytest

from broker.storage.engine.session import Session
from conformance.interleaving import unheard
from conformance.world import World, acks, bodies, nacks, ok, pull, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


class LostAnswers:
    """COMMITs that take effect, and get no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        real = Session.commit

        def commit(session: Session) -> None:
            if self.left and not session.reading:
                unheard(session)
            real(session)
            if self.left and not session.reading:
                self.left -= 1
                raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

        monkeypatch.setattr(Session, "commit", commit)


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_acks_and_nacks(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    ok(await store.send([sending(topic, "acked"), sending(topic, "nacked")]))
    acked, nacked = [(await pull(store, group, topic, limit=1)) for _ in range(2)]
    lost = LostAnswers(monkeypatch)
    lost.left = times
    ok(await store.settle([*acks(acked), *nacks(nacked, delay=0)]))
    assert lost.left == 0
    assert bodies(await pull(store, group, topic)) == ["nacked"]


@pytest.mark.parametrize("times", [2, 3])
async def test_pulls(
    store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    ok(await store.send([sending(topic, "a")]))
    lost = LostAnswers(monkeypatch)
    lost.left = times
    assert bodies(await pull(store, group, topic)) == ["a"]
    assert lost.left == 0
