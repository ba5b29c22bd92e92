"""The tables of the shop of `halfmq bench ways`, and what several ways do with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from halfmq_cli.bench.load import WATCHED

if TYPE_CHECKING:
    from producer_sdk import Producer

ORDERS = sa.MetaData()


def _table(name: str, *columns: sa.Column[Any]) -> sa.Table:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Table(
        name,
        ORDERS,
        sa.Column("number", number, primary_key=True, autoincrement=True),
        *columns,
        sa.Column("body", sa.LargeBinary, nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


RECONCILED = "reconciled_orders"

INSERT = sa.insert(_table("orders"))
INSERT_WATCHED = sa.insert(_table(WATCHED))
INSERT_RECONCILED = sa.insert(_table(RECONCILED, sa.Column("made_us", sa.BigInteger, nullable=False, index=True)))
INSERT_MESSAGE_ROW = sa.insert(_table("message_rows", sa.Column("topic_name", sa.String(127), nullable=False)))


def send_after_commit(engine: sa.Engine, producer: Producer, topic: str, body: bytes) -> None:
    """Writes an order, and sends its message when that is committed."""
    with engine.begin() as connection:
        connection.execute(INSERT, {"body": body})
    producer.send(topic, body)
