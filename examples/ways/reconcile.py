"""Sends what is missing for a table of orders, all the time. Usage: reconcile.py ENDPOINT [DATABASE]."""

import sys
import time

from sqlalchemy import create_engine, text

from halfmq_connect.reconciliation import BusinessTable, Finding, Reconciliation, ReconciliationSettings
from producer_sdk import Message


def main(endpoint: str, database: str = "sqlite:///orders.db") -> None:
    """Compares until it is interrupted."""
    engine = create_engine(database)
    with engine.begin() as connection:
        columns = "id INTEGER PRIMARY KEY, content VARCHAR(100), created_at INTEGER"
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS orders ({columns})"))
    reconciliation = Reconciliation(
        engine,
        BusinessTable("orders", columns=["content"], time_unit="s"),
        endpoint,
        "orders",
        make=lambda row: Message("orders", row.values["content"], keys=[row.key]),
        on_finding=tell,
        settings=ReconciliationSettings(window=3600, grace=2, every=1),
    )
    reconciliation.create_tables()
    with reconciliation.running():
        while True:
            time.sleep(1)


def tell(finding: Finding) -> None:
    """Prints what was found."""
    print(f"{finding.kind}: order {finding.key}{', sent now' if finding.repaired else ''}")


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
