"""A shop with a table of sales, and what reconciles it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from halfmq_connect.reconciliation import (
    BusinessTable,
    Reconciliation,
    ReconciliationSettings,
)
from producer_sdk import Message, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.embedded import EmbeddedBroker
    from client_core.stored import StoredMessage
    from halfmq_connect.reconciliation.business import BusinessRow
    from ways.shops import Shop

SOON = ReconciliationSettings(window=60.0, grace=0.0, every=0.05, catch_up=20.0)
TYPES = {"sqlite": "VARCHAR(40)", "mysql": "DATETIME(6)", "mariadb": "DATETIME(6)", "postgresql": "TIMESTAMPTZ"}


def sell(shop: Shop, *numbers: int, amount: str = "5.00", ago: float = 1.0) -> None:
    at: Any = datetime.now(UTC) - timedelta(seconds=ago)
    if shop.kind != "postgresql":
        at = at.replace(tzinfo=None)
    if shop.kind == "sqlite":
        at = at.isoformat(sep=" ", timespec="microseconds")
    insert = sa.text("INSERT INTO sales (id, amount, at) VALUES (:id, :amount, :at)")
    with shop.engine.begin() as connection:
        for each in numbers:
            connection.execute(insert, {"id": each, "amount": amount, "at": at})


def made(topic: str) -> Callable[[BusinessRow], Message]:
    return lambda row: Message(topic, json.dumps({"amount": str(row.values["amount"])}), keys=[row.key])


def send(broker: EmbeddedBroker, topic: str, *numbers: int, amount: str = "5") -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many(Message(topic, json.dumps({"amount": amount}), keys=[f"{each}"]) for each in numbers)


def amount_of(message: StoredMessage) -> object:
    return json.loads(message.body)["amount"]


def reconciliation(shop: Shop, broker: EmbeddedBroker, topic: str, **settings: Any) -> Reconciliation:
    table = BusinessTable("sales", key="id", time="at", columns=["amount"], where="id < 1000 AND 'a' LIKE '%'")
    given: dict[str, Any] = {
        "settings": SOON,
        "make": made(topic),
        "compare": {"amount": amount_of},
        "on_finding": lambda finding: None,
    }
    database = settings.pop("database", shop.engine)
    result = Reconciliation(database, table, broker.endpoint, topic, **{**given, **settings})
    result.create_tables()
    return result


def facts(findings: object) -> list[tuple[str, str, bool]]:
    return sorted((each.kind, each.key, each.repaired) for each in findings)  # type: ignore[attr-defined]
