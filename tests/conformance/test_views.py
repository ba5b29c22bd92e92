"""The views for SQL: their columns, which are stable, and what is in them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from broker.domain.group import GroupMode, GroupSettings
from broker.domain.ids import format_id
from broker.domain.topic import TopicSettings
from broker.errors import ConfigurationError
from broker.ports.delivery import ClaimWork, JoinWork
from broker.storage.engine.connection import Database
from broker.storage.migrations import current, migrate, newest
from broker.storage.migrations.views import VIEWS, create_views
from conformance.world import HOUR, LEASE, POLICY, PREFIXES, World, ok, prepared, sending
from support.databases import Kind, connect, create_database, drop_database, server_url

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from support.databases import AnyKind

COLUMNS = {
    "halfmq_pending": "transaction_id producer_group topic messages prepared_at age_seconds next_check_at checks_sent",
    "halfmq_parked": "transaction_id producer_group topic messages prepared_at parked_at parked_seconds checks_sent",
    "halfmq_lag": "consumer_group member topic queue_no next_offset end_offset ready_messages leased_messages"
    " ready_since ready_seconds",
}


async def rows_of(store: Store, view: str) -> list[dict[str, Any]]:
    """The rows of a view, as a tool would read them."""

    def read(session: Any) -> list[dict[str, Any]]:
        session.cursor.execute(f"SELECT * FROM {store._database.names.prefix}{view}")
        names = [column[0] for column in session.cursor.description]
        assert names == COLUMNS[view].split(), view
        return [dict(zip(names, row, strict=True)) for row in session.cursor.fetchall()]

    return await store._read(read)


def test_all_views_are_here() -> None:
    assert tuple(COLUMNS) == VIEWS


async def test_pending_transactions(world: World, store: Store, topic: Topic) -> None:
    assert await rows_of(store, "halfmq_pending") == []
    own = await prepared(store, topic, bodies=["a", "b"])
    (row,) = await rows_of(store, "halfmq_pending")
    assert row["transaction_id"] == format_id(own) == str(uuid.UUID(bytes=own))
    assert (row["producer_group"], row["topic"], row["messages"], row["checks_sent"]) == ("shop", "orders", 2, 0)
    # The world's clock stands at 2027-01-15 08:00:00.
    assert str(row["prepared_at"]).startswith("2027-01-15 08:00:00")
    assert str(row["next_check_at"]).startswith("2027-01-15 08:00:06")


async def test_the_age_is_that_of_the_databases_clock(kind: AnyKind, world: World, store: Store, topic: Topic) -> None:
    with connect(world.url) if kind != "sqlite" else _Now() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT UNIX_TIMESTAMP(NOW(6)) * 1000000")
        world.clock.time = int(cursor.fetchall()[0][0]) - 100_000_000
    await prepared(store, topic)
    (row,) = await rows_of(store, "halfmq_pending")
    assert 100 <= float(row["age_seconds"]) < 160


class _Now:
    """The time of this machine, which is that of the embedded database."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def cursor(self) -> Any:
        return self

    def execute(self, _: str) -> None:
        return

    def fetchall(self) -> list[tuple[float]]:
        import time

        return [(time.time() * 1e6,)]


async def test_parked_transactions(world: World, store: Store, topic: Topic) -> None:
    own = await prepared(store, topic)
    group = await store.producer_group_id("shop")
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        await store.claim_checks([group], POLICY, 10)
    assert (await rows_of(store, "halfmq_pending"))[0]["checks_sent"] == POLICY.max_checks
    world.clock.pass_time(POLICY.interval)
    await store.park_exhausted(10)
    assert await rows_of(store, "halfmq_pending") == []
    (row,) = await rows_of(store, "halfmq_parked")
    assert (row["transaction_id"], row["checks_sent"]) == (format_id(own), POLICY.max_checks)
    assert str(row["parked_at"]).startswith("2027-01-15 08:02:00")


async def test_the_lag_of_each_queue(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    (row,) = await rows_of(store, "halfmq_lag")
    assert (row["consumer_group"], row["member"], row["topic"], row["queue_no"]) == ("billing", "", "orders", 0)
    assert (row["ready_messages"], row["ready_since"], row["ready_seconds"]) == (0, None, None)
    ok(await store.send([sending(topic, str(number)) for number in range(5)]))
    await store.claim([ClaimWork(group, [topic], "me", 2, 1 << 20, LEASE)])
    (row,) = await rows_of(store, "halfmq_lag")
    assert (row["next_offset"], row["end_offset"], row["ready_messages"]) == (2, 5, 3)
    assert int(row["leased_messages"]) == 2
    assert str(row["ready_since"]).startswith("2027-01-15 08:00:00")


async def test_a_member_of_a_broadcasting_group_has_a_row_of_its_own(world: World, store: Store, topic: Topic) -> None:
    made = await store.create_group("news", GroupSettings(3, mode=GroupMode.BROADCASTING), TopicSettings(1, HOUR))
    await store.join(JoinWork(made, [topic], "reader-1", {}))
    found = {(row["consumer_group"], row["member"]) for row in await rows_of(store, "halfmq_lag")}
    assert found == {("news", "reader-1")}


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_user_without_the_right_gets_tables_and_a_warning_and_views_later(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    url = create_database(server_url(kind))
    name = url.rpartition("/")[2]
    user = f"views_{name}"[:32]
    try:
        with connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'none'")
            cursor.execute(
                f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON `{name}`.* TO '{user}'@'%'"
            )
        scheme, _, rest = url.partition("://")
        database = Database(f"{scheme}://{user}:none@{rest.rpartition('@')[2]}")
        migrate(database)
        assert current(database) == newest()
        assert [record.levelname for record in caplog.records if "--views" in record.message] == ["WARNING"]
        with pytest.raises(ConfigurationError, match="lacks the right CREATE VIEW"):
            create_views(database)
        database.close()
        database = Database(url)
        create_views(database)
        create_views(database)
        with connect(url) as connection, connection.cursor() as cursor:
            for view in VIEWS:
                cursor.execute(f"SELECT * FROM {view}")
        database.close()
    finally:
        with connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP USER IF EXISTS '{user}'@'%'")
        drop_database(url)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_may_read_a_view_needs_no_right_to_the_tables(kind: Kind) -> None:
    url = create_database(server_url(kind))
    name = url.rpartition("/")[2]
    user = f"reads_{name}"[:32]
    try:
        database = Database(url)
        migrate(database)
        database.close()
        with connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'none'")
            cursor.execute(f"GRANT SELECT ON `{name}`.halfmq_lag TO '{user}'@'%'")
        scheme, _, rest = url.partition("://")
        theirs = f"{scheme}://{user}:none@{rest.rpartition('@')[2]}"
        with connect(theirs) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT consumer_group, SUM(ready_messages) FROM halfmq_lag GROUP BY consumer_group")
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                cursor.execute("SELECT * FROM lease")
    finally:
        with connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP USER IF EXISTS '{user}'@'%'")
        drop_database(url)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_table_of_others_with_the_name_of_a_view_stays(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    url = create_database(server_url(kind))
    try:
        with connect(url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE halfmq_parked (mine INT)")
        database = Database(url)
        migrate(database)
        assert current(database) == newest()
        assert [record.levelname for record in caplog.records if "--views" in record.message] == ["WARNING"]
        with connect(url) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT mine FROM halfmq_parked")
        database.close()
    finally:
        drop_database(url)


def test_one_database_of_the_contract_has_a_prefix() -> None:
    assert any(PREFIXES.values()), "so that views are tried with one"
