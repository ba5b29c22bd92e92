"""An order service: an order in its database and its message happen both, or neither.

    python examples/order_service.py                    with an in-process broker
    python examples/order_service.py localhost:8085     with a running one: halfmq serve --auto-create

Three orders are placed. The first one is paid for; the second is refused by the payment; with the third the service
"forgets" the verdict, as if it had crashed after its local commit, and the broker sends a check.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from consumer_sdk import Consumer
from producer_sdk import TransactionProducer
from producer_sdk.fence import TransactionFence
from producer_sdk.testing import embedded_broker


class PaymentRefused(Exception):
    """The customer cannot pay."""


class Base(DeclarativeBase):
    """The tables of the service."""


class Order(Base):
    """An order."""

    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]

    def to_json(self) -> str:
        """The order as a message."""
        return json.dumps({"number": self.number, "item": self.item})


def place_orders(producer: TransactionProducer, session: Session) -> None:
    """Places three orders, each of which ends in another way."""
    with producer.transaction(session) as tx:
        order = Order(number=1, item="lamp")
        session.add(order)
        tx.send("orders", order.to_json())
    print("lamp: committed here and at the broker")

    try:
        with producer.transaction(session) as tx:
            order = Order(number=2, item="yacht")
            session.add(order)
            tx.send("orders", order.to_json())
            raise PaymentRefused("a yacht is too much")
    except PaymentRefused as reason:
        print(f"yacht: rolled back here and at the broker ({reason})")

    # As if the process had been killed right after its COMMIT: the end of the block is never reached.
    tx = producer.transaction(session).__enter__()
    order = Order(number=3, item="chair")
    session.add(order)
    tx.send("orders", order.to_json())
    session.commit()
    print("chair: committed here, the broker does not know")


def main() -> None:
    """Places the orders and receives the messages that become visible."""
    with contextlib.ExitStack() as stack:
        endpoint = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(embedded_broker(first_check=2.0)).endpoint
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = create_engine(f"sqlite:///{folder / 'orders.db'}")
        stack.callback(engine.dispose)
        Base.metadata.create_all(engine)
        fence = TransactionFence(engine)
        fence.create_tables()
        producer = stack.enter_context(TransactionProducer(endpoint, "order-service", fence))
        place_orders(producer, stack.enter_context(Session(engine)))
        with Consumer(endpoint, "shipping", "orders") as consumer:
            for _ in range(2):
                message = next(consumer)
                print(f"received: {json.loads(message.text)['item']}")
                message.ack()


if __name__ == "__main__":
    main()
