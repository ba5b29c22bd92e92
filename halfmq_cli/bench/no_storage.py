"""`python -m halfmq_cli.bench.no_storage`: a broker that stores no message, to see what its calls cost by themselves.

It is the broker with all its parts but one: topics and groups are in the database that HALFMQ_DATABASE names; messages
and verdicts are answered as if they had been stored, and forgotten. Nothing can be consumed from it.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from broker.app import Broker
from broker.config import BrokerConfig
from broker.domain.place import InLog
from broker.domain.transaction import TransactionState
from broker.ports.transactions import TransactionOutcome
from broker.storage.adapters.store import Store
from halfmq_cli import logs
from halfmq_cli.serving import run_broker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from broker.domain.place import Place
    from broker.errors import BrokerError
    from broker.ports.log import Duplicate, SendWork
    from broker.ports.transactions import Half, PrepareWork, VerdictWork


class NoStorage(Store):
    """Answers for messages and verdicts without the database."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Takes what a Store takes."""
        super().__init__(*arguments, **settings)
        self._prepared: dict[bytes, list[Half]] = {}
        self._next_offset = Counter[int]()

    async def prepare(self, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        """Notes where the half messages are to go."""
        for item in work:
            self._prepared.setdefault(item.transaction_id, []).extend(item.halves)
        return [TransactionOutcome(item.transaction_id, TransactionState.PREPARED) for item in work]

    async def decide(self, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        """Answers with places in queues for what is committed."""
        return [self._decided(item) for item in work]

    async def send(self, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        """Answers with places in queues."""
        return [self._place(item.topic_id, item.queue_no) for item in work]

    def _decided(self, item: VerdictWork) -> TransactionOutcome:
        halves = self._prepared.pop(item.transaction_id, [])
        if not item.commit:
            return TransactionOutcome(item.transaction_id, TransactionState.ROLLED_BACK)
        places = [self._place(half.topic_id, half.queue_no) for half in halves]
        return TransactionOutcome(item.transaction_id, TransactionState.COMMITTED, places)

    def _place(self, topic_id: int, queue_no: int | None) -> InLog:
        topic = self.directory.peek_id(topic_id)
        queue_id = topic.choose_queue(queue_no, 0, next(self._rotations)) if topic is not None else 0
        self._next_offset[queue_id] += 1
        return InLog(queue_id, self._next_offset[queue_id] - 1)


def main() -> None:
    """Runs it as `halfmq serve` runs a broker, for RocketMQ's clients, too."""
    config = BrokerConfig(database=os.environ["HALFMQ_DATABASE"], listen="127.0.0.1:0", auto_create=True, rocketmq=True)
    logs.set_up(config.log_format, "warning")
    run_broker(config, make_broker=partial(Broker, make_store=NoStorage))


if __name__ == "__main__":
    main()
