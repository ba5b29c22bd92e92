"""The outbox's tables: as SQL, by one call, and as a MetaData that Alembic picks up; all the same. And plans."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from client_core.ids import new_id
from producer_sdk import ConfigurationError, Message
from producer_sdk.outbox import AsyncOutbox, Outbox, OutboxState
from producer_sdk.outbox.operating import Operating
from producer_sdk.outbox.pending import PendingRows
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.local_database import LocalTransaction
    from ways.shops import Shop


def differences(shop: Shop, metadata: sa.MetaData) -> list[object]:
    with shop.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"compare_type": True, "include_name": lambda name, kind, _: kind != "table" or name != "orders"},
        )
        return list(compare_metadata(context, metadata))


@pytest.mark.parametrize("table", ["halfmq_outbox", "our_messages"])
def test_each_way_makes_the_same_tables(shop: Shop, table: str) -> None:
    outbox = Outbox(shop.engine, table=table)
    metadata = sa.MetaData()
    made = outbox.add_tables(metadata)
    assert [each.name for each in made] == [table, f"{table}_relay"]
    assert outbox.add_tables(metadata) == made
    assert differences(shop, metadata) != []
    with shop.engine.begin() as connection:
        for statement in outbox.sql(shop.kind).split(";"):
            connection.exec_driver_sql(statement)
    assert differences(shop, metadata) == []
    outbox.create_tables()
    outbox.create_tables()
    assert differences(shop, metadata) == []
    metadata.drop_all(shop.engine)
    metadata.create_all(shop.engine)
    outbox.create_tables()
    with Session(shop.engine) as session:
        outbox.put(session, Message("orders", "x"))
        session.commit()
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 1}


def test_tables_may_lie_in_a_schema_of_their_own(shop: Shop) -> None:
    schema = {"sqlite": "main", "postgresql": "public"}.get(shop.kind, str(shop.engine.url.database))
    outbox = Outbox(shop.engine, table=f"{schema}.halfmq_outbox")
    outbox.create_tables()
    with Session(shop.engine) as session:
        outbox.put(session, Message("orders", "x"))
        session.commit()
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 1}
    outbox.on_database(lambda local: PendingRows(outbox).sent(local, [1], keep=False))
    assert outbox.status().counts == {}


def test_an_unknown_dialect_is_named() -> None:
    with pytest.raises(ConfigurationError, match="not on 'oracle'"):
        Outbox("sqlite:///x.db").sql("oracle")


KEPT, WAITING = 20_000, 30


@pytest.fixture
def filled(shop: Shop) -> Outbox:
    """Many messages that are sent and kept, and a few that wait at the end."""
    outbox = Outbox(shop.engine)
    outbox.create_tables()
    metadata = sa.MetaData()
    messages, _ = outbox.add_tables(metadata)
    with shop.engine.begin() as connection:
        rows = [
            {
                "message_id": f"018f2a6e-7b1c-7cc3-9b7e-{number:012x}",
                "topic": "orders",
                "state": "GLOBAL_COMMIT" if number < KEPT else "LOCAL_COMMIT" if number % 3 else "UNKNOWN",
                "retries": 0,
                "due_at": 1,
                "created_at": 1,
                "changed_at": 1 << 60,
                "size": 1,
                "body": b"x",
            }
            for number in range(KEPT + WAITING)
        ]
        connection.execute(messages.insert(), rows)
    analyze = {"postgresql": "ANALYZE", "sqlite": "ANALYZE"}.get(shop.kind, "ANALYZE TABLE halfmq_outbox")
    with shop.engine.connect() as connection:
        connection.exec_driver_sql(analyze)
        connection.commit()
    return outbox


def _statements(shop: Shop, outbox: Outbox, work: Callable[[LocalTransaction], Any]) -> list[str]:
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    def without_effect(local: LocalTransaction) -> None:
        work(local)
        raise ZeroDivisionError

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    with pytest.raises(ZeroDivisionError):
        outbox.on_database(without_effect)
    sa.event.remove(shop.engine, "before_cursor_execute", note)
    return [each for each in seen if re.match("SELECT|UPDATE|DELETE", each)]


def test_what_the_relay_reads_follows_what_waits(shop: Shop, filled: Outbox) -> None:
    """Each statement uses the index of pending rows or the primary key; none scans what is kept."""
    rows = PendingRows(filled)
    works: list[Callable[[LocalTransaction], Any]] = [
        lambda local: rows.read(local, 0, 500, 8192),
        lambda local: rows.read(local, KEPT, 500, 8192),
        lambda local: rows.count(local, 1 << 40),
        lambda local: rows.undecided(local, 0, 100),
        lambda local: rows.stopped_groups(local, 0, 1000),
        lambda local: rows.delete_old(local, {OutboxState.GLOBAL_COMMIT: 3600.0}, {}, 100),
        lambda local: rows.bodies(local, [1, 2]),
        lambda local: rows.sent(local, [KEPT + 2, KEPT + 3], keep=True),
        lambda local: rows.sent(local, [KEPT + 2, KEPT + 3], keep=False),
        lambda local: rows.note_tried(local, KEPT, KEPT + 10, 1),
        lambda local: Operating(filled).errors(local, 0, 100),
    ]
    statements = [each for work in works for each in _statements(shop, filled, work)]
    assert len(statements) >= len(works)
    for statement in statements:
        with shop.engine.connect() as connection:
            _check_plan(shop, connection, statement)


def _check_plan(shop: Shop, connection: sa.Connection, statement: str) -> None:
    if shop.kind == "sqlite":
        for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}"):
            assert "SEARCH" in row[3] or "LIST SUBQUERY" in row[3], (statement, row)
    elif shop.kind == "postgresql":
        ((plan,),) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}").all()
        connection.rollback()
        text = json.dumps(plan)
        assert "Seq Scan" not in text, (statement, plan)
        removed = [int(each) for each in re.findall(r'"Rows Removed by Filter": (\d+)', text)]
        assert sum(removed) <= WAITING, (statement, plan)
    else:
        rows = connection.exec_driver_sql(f"EXPLAIN FORMAT=TRADITIONAL {statement}").mappings().all()
        for row in rows:
            assert row["key"] in {"halfmq_outbox_pending", "PRIMARY"}, (statement, row)
            bound = KEPT if "GLOBAL_COMMIT' AND id" in statement else 2 * WAITING
            assert int(row["rows"]) <= bound, (statement, row)


@pytest.mark.parametrize("call", ["status", "errors", "state", "cancel", "retry", "skip", "announce", "confirm", "put"])
async def test_tables_that_are_not_there_are_asked_for(shop: Shop, call: str) -> None:
    def calls(outbox: Any, session: Any) -> Any:
        return {
            "status": outbox.status,
            "errors": outbox.errors,
            "state": lambda: outbox.state(new_id()),
            "cancel": lambda: outbox.cancel(new_id()),
            "retry": lambda: outbox.retry([1]),
            "skip": lambda: outbox.skip([1]),
            "announce": lambda: outbox.announce(Message("orders", "lamp")),
            "confirm": lambda: outbox.confirm(session, new_id()),
            "put": lambda: outbox.put(session, Message("orders", "lamp")),
        }[call]()

    expected = r"no table \S*halfmq_outbox(_relay)? for this connection.*call create_tables\(\)"
    with Session(shop.engine) as session, pytest.raises(ConfigurationError, match=expected) as refused:
        calls(Outbox(shop.engine), session)
    assert refused.value.field == "table"
    engine = create_async_engine(shop.async_url)
    async with AsyncSession(engine) as session:
        with pytest.raises(ConfigurationError, match=expected):
            await calls(AsyncOutbox(engine), session)
    await engine.dispose()


def test_the_command_names_the_table_and_how_to_make_it(shop: Shop) -> None:
    command = [sys.executable, "-m", "halfmq_cli", "relay", "--database", shop.url]
    for options in (["--status"], ["--retry", "all"], ["--skip", "1"], ["--endpoint", "127.0.0.1:1"]):
        ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=HANG, check=False)
        assert ran.returncode != 0
        assert "halfmq_outbox" in ran.stderr
        assert "call create_tables()" in ran.stderr
        assert "--create-tables" in ran.stderr
        assert "Traceback" not in ran.stderr
