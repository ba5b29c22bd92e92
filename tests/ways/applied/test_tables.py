"""The table of marks: as SQL, by one call, and as a MetaData that Alembic picks up; and its statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from client_core.local_database import join
from consumer_sdk.applied import AppliedMessages
from ways.deliveries import delivered
from ways.shops import differences

if TYPE_CHECKING:
    from ways.shops import Shop


@pytest.mark.parametrize("table", ["halfmq_applied", "our_marks"])
def test_each_way_makes_the_same_table(shop: Shop, table: str) -> None:
    applied = AppliedMessages(shop.engine, "accounts", table=table)
    metadata = sa.MetaData()
    made = applied.add_tables(metadata)
    assert applied.add_tables(metadata) is made
    assert differences(shop, metadata) != []
    with shop.engine.begin() as connection:
        for statement in applied.sql(shop.kind).split(";"):
            connection.exec_driver_sql(statement)
    assert differences(shop, metadata) == []
    for _ in range(2):
        applied.create_tables()
    assert differences(shop, metadata) == []
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")
    metadata.create_all(shop.engine)
    applied.create_tables()
    assert differences(shop, metadata) == []


def test_one_more_statement_in_the_transaction(shop: Shop) -> None:
    applied = AppliedMessages(shop.engine, "accounts")
    applied.create_tables()
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement.split(maxsplit=1)[0])

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    applied.handler(lambda message, connection: None)(delivered(dedup_key="7"))
    assert seen == ["INSERT"]


def test_old_marks_are_found_by_their_index(shop: Shop) -> None:
    applied = AppliedMessages(shop.engine, "accounts")
    applied.create_tables()
    handler = applied.handler(lambda message, connection: None)
    for number in range(300):
        handler(delivered(dedup_key=f"{number}"))
    seen: list[tuple[str, Any]] = []
    with shop.engine.begin() as connection:
        if shop.kind in {"mysql", "mariadb"}:
            connection.exec_driver_sql("ANALYZE TABLE halfmq_applied")
        if shop.kind == "postgresql":
            connection.exec_driver_sql("ANALYZE halfmq_applied")
            connection.exec_driver_sql("SET enable_seqscan = off")  # the table is small
        sa.event.listen(connection, "before_cursor_execute", lambda *each: seen.append((each[2], each[3])))
        assert applied.marks.older(join(connection), 3600.0, 0, 500) == []
        ((statement, values),) = [each for each in seen if each[0].startswith("SELECT mark_id")]
        explain = "EXPLAIN QUERY PLAN " if shop.kind == "sqlite" else "EXPLAIN "
        plan = str(connection.exec_driver_sql(explain + statement, values).all())
    assert "halfmq_applied_applied" in plan, plan
