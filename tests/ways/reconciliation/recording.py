"""A process that reconciles sales until it is ended, or killed.

    python -m ways.reconciliation.recording ENDPOINT TOPIC URL

Each step is a line: "records KEY" for a message that is about to be recorded, "sends KEY" for one that is about to be
sent, "sent KEY" after that, and after each round "round ROWS". SIGTERM ends it after a round.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from halfmq_connect.reconciliation import BusinessTable, Reconciliation, ReconciliationSettings
from ways.reconciliation.sales import amount_of, made

if TYPE_CHECKING:
    from client_core.stored import StoredMessage
    from halfmq_connect.reconciliation import Finding
    from halfmq_connect.reconciliation.business import BusinessRow
    from producer_sdk import Message

_PAUSE = 0.05
# Each round looks at all rows of the test, and at the youngest one as well.
_SETTINGS = ReconciliationSettings(window=3600.0, grace=0.0, catch_up=60.0)


def of_all_sales(engine: sa.Engine, endpoint: str, topic: str, **settings: Any) -> Reconciliation:
    """What reconciles all sales with their messages."""
    table = BusinessTable("sales", key="id", time="at", columns=["amount"])
    given: dict[str, Any] = {"settings": _SETTINGS, "make": made(topic), "compare": {"amount": amount_of}}
    return Reconciliation(engine, table, endpoint, topic, **{**given, **settings})


def main(endpoint: str, topic: str, url: str) -> None:
    """Rounds, one after the other."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def tell(*words: object) -> None:
        # In one piece: two threads write.
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()

    def make(row: BusinessRow) -> Message:
        tell("sends", row.key)
        return made(topic)(row)

    def compared(message: StoredMessage) -> object:
        tell("records", message.keys[0])
        return amount_of(message)

    def found(finding: Finding) -> None:
        if finding.repaired:
            tell("sent", finding.key)

    engine = sa.create_engine(url)
    checked = of_all_sales(engine, endpoint, topic, make=make, compare={"amount": compared}, on_finding=found)
    with checked.recording():
        while not stopped.wait(_PAUSE):
            done = checked.compare()
            if done.window is not None:
                tell("round", done.rows)
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
