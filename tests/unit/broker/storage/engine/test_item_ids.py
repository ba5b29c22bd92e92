"""Ids of what a lane of the storage works on, as the log tells them."""

from __future__ import annotations

import pytest

from broker.domain.group import ConsumerGroup
from broker.domain.ids import format_id
from broker.domain.message import LogMessage, Message
from broker.domain.transaction import VerdictSource
from broker.ports.delivery import AckWork, ClaimWork
from broker.ports.log import RecallWork, SendWork
from broker.ports.transactions import Half, PrepareWork, VerdictWork
from broker.storage.engine.item_ids import MOST_IDS, ids_of, ids_of_all

ID = bytes(range(16))
TEXT = format_id(ID)
MESSAGE = Message("orders", b"secret")


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (SendWork(ID, 1, None, MESSAGE), {"message_id": TEXT, "topic": "orders"}),
        (PrepareWork(ID, 1, [Half(1, None, MESSAGE)]), {"transaction_id": TEXT}),
        (VerdictWork(ID, commit=True, source=VerdictSource.PRODUCER), {"transaction_id": TEXT}),
        (RecallWork(ID, 2), {"message_id": f"{TEXT}.2"}),
        (
            ClaimWork(ConsumerGroup(1, "billing", 0), [], "billing-1", 10, 1000, 1),
            {"client_id": "billing-1", "group": "billing"},
        ),
        (
            LogMessage("orders", 0, 7, ID, 1, b"", None, [], {}, None, 1, 2),
            {"message_id": f"{TEXT}.1", "topic": "orders"},
        ),
        (AckWork(1, 2, [3]), {}),
        (None, {}),
        (5, {}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_item_names_what_it_is_about(item: object, found: dict[str, str]) -> None:
    assert ids_of(item) == found


def test_of_several_what_they_share_is_told_once() -> None:
    items = [RecallWork(bytes([number]) * 16, 0) for number in range(MOST_IDS + 5)]
    ids = [format_id(item.transaction_id) for item in items]
    assert ids_of_all(items) == {"message_ids": ids[:MOST_IDS]}
    sends = [SendWork(item.transaction_id, 1, None, MESSAGE) for item in items[:2]]
    assert ids_of_all(sends) == {"topic": "orders", "message_ids": ids[:2]}
    assert ids_of_all([]) == {}
