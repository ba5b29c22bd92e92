"""Times of business rows, where sessions of the database are not in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from client_core.local_database import local_database
from halfmq_connect.reconciliation import BusinessTable
from producer_sdk import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq_connect.reconciliation.business import BusinessRow
    from ways.shops import Shop

SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql", "postgresql"])


@pytest.fixture(params=["-05:00", "+05:30"])
def zone(request: pytest.FixtureRequest) -> str:
    """Where the service is."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def engine(shop: Shop, zone: str) -> Iterator[sa.Engine]:
    """The service's engine."""
    on_connect = {"init_command": f"SET time_zone = '{zone}'"}
    if shop.kind == "postgresql":
        # POSIX's signs are the other way round.
        on_connect = {"options": f"-c timezone=<{zone}>{'-' if zone[0] == '+' else '+'}{zone[1:]}"}
    made = sa.create_engine(shop.url, connect_args=on_connect, pool_size=1, max_overflow=0)
    yield made
    made.dispose()


def rows(engine: sa.Engine, **description: Any) -> list[BusinessRow]:
    """What a window of ten minutes has, as far as ten seconds into the future."""
    table = BusinessTable("sales", **description)
    now = datetime.now(UTC)
    found = table.rows(local_database(engine), now - timedelta(minutes=10), now + timedelta(seconds=10))
    return [row for page in found for row in page]


def sell(engine: sa.Engine, column: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE sales (id INT PRIMARY KEY, created_at {column})")
        connection.exec_driver_sql("INSERT INTO sales (id) VALUES (1), (2)")


def is_now(row: BusinessRow) -> bool:
    return abs(datetime.now(UTC) - row.time) < timedelta(minutes=1)


@SERVERS
def test_a_type_with_a_zone_is_exact(shop: Shop, engine: sa.Engine, zone: str) -> None:
    kind = "TIMESTAMPTZ" if shop.kind == "postgresql" else "TIMESTAMP"
    sell(engine, f"{kind} NOT NULL DEFAULT CURRENT_TIMESTAMP")
    found = rows(engine)
    assert [row.key for row in found] == ["1", "2"]
    assert all(is_now(row) for row in found)
    with engine.connect() as connection:
        # The service's one connection is as it was.
        query = "SELECT EXTRACT(TIMEZONE FROM now())" if shop.kind == "postgresql" else "SELECT @@session.time_zone"
        seconds = (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 3600 + int(zone[4:]) * 60)
        assert connection.exec_driver_sql(query).scalar() == (seconds if shop.kind == "postgresql" else zone)


@SERVERS
def test_a_type_without_a_zone_asks_for_it(shop: Shop, engine: sa.Engine, zone: str) -> None:
    kind = "TIMESTAMP" if shop.kind == "postgresql" else "DATETIME"
    sell(engine, f"{kind} NOT NULL DEFAULT CURRENT_TIMESTAMP")
    with pytest.raises(ConfigurationError, match=f'time_zone="\\{zone}"') as refused:
        rows(engine)
    assert refused.value.field == "time_zone"
    found = rows(engine, time_zone=zone)
    assert [row.key for row in found] == ["1", "2"]
    assert all(is_now(row) for row in found)
    # The window is of another time, and so are rows that are said to be in UTC.
    assert rows(engine, time_zone="UTC") == []


@SERVERS
def test_a_zone_for_times_that_have_one_is_refused(shop: Shop, engine: sa.Engine, zone: str) -> None:
    kind = "TIMESTAMPTZ" if shop.kind == "postgresql" else "TIMESTAMP"
    sell(engine, f"{kind} NOT NULL DEFAULT CURRENT_TIMESTAMP")
    if shop.kind == "postgresql":  # Its values have their zone with them.
        assert [row.key for row in rows(engine, time_zone=zone)] == ["1", "2"]
        return
    with pytest.raises(ConfigurationError, match="of its own") as refused:
        rows(engine, time_zone=zone)
    assert refused.value.field == "time_zone"


@pytest.mark.parametrize("kind", ["sqlite"])
def test_texts_are_in_the_zone_that_is_named(shop: Shop, kind: str) -> None:
    here = timezone(timedelta(hours=-5))
    young, old = (datetime.now(here) - timedelta(minutes=ago) for ago in (1, 20))
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE sales (id INT PRIMARY KEY, created_at TEXT, sent_at TEXT)")
        for number, at in enumerate((young, old)):
            told = (number, at.replace(tzinfo=None).isoformat(sep=" "), at.isoformat(sep=" "))
            connection.exec_driver_sql("INSERT INTO sales VALUES (?, ?, ?)", told)
    (found,) = rows(shop.engine, time_zone="-05:00")
    assert (found.key, found.time) == ("0", young)
    with pytest.raises(ConfigurationError, match="with an offset") as refused:
        rows(shop.engine, time="sent_at")
    assert refused.value.field == "time"
    (found,) = rows(shop.engine, time="datetime(sent_at)")
    assert found.key == "0"


@SERVERS
def test_the_database_may_convert_it(shop: Shop, engine: sa.Engine, zone: str) -> None:
    kind = "TIMESTAMP" if shop.kind == "postgresql" else "DATETIME"
    sell(engine, f"{kind} NOT NULL DEFAULT CURRENT_TIMESTAMP")
    if shop.kind == "postgresql":
        found = rows(engine, time="created_at AT TIME ZONE current_setting('TimeZone')")
    else:
        found = rows(engine, time=f"CONVERT_TZ(created_at, '{zone}', '+00:00')", time_zone="UTC")
    assert [row.key for row in found] == ["1", "2"]
    assert all(is_now(row) for row in found)


@pytest.mark.parametrize("wrong", ["Europe/Berlin", "+2", "+25:00", "", 3])
def test_other_zones_are_named(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="CONVERT_TZ") as refused:
        BusinessTable("sales", time_zone=wrong)
    assert refused.value.field == "time_zone"
