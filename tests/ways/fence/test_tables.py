"""The fence's table: as SQL, by one call, and as a MetaData that Alembic picks up; all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from producer_sdk import ConfigurationError
from producer_sdk.fence import TransactionFence
from ways.shops import differences

if TYPE_CHECKING:
    from ways.shops import Shop


@pytest.mark.parametrize("table", ["halfmq_fence", "our_transactions"])
def test_each_way_makes_the_same_table(shop: Shop, table: str) -> None:
    fence = TransactionFence(shop.engine, table=table)
    metadata = sa.MetaData()
    made = fence.add_tables(metadata)
    assert made.name == table
    assert fence.add_tables(metadata) is made
    assert differences(shop, metadata) != []
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(fence.sql(shop.kind))
    assert differences(shop, metadata) == []
    fence.create_tables()
    fence.create_tables()
    assert differences(shop, metadata) == []
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")
    metadata.create_all(shop.engine)
    fence.create_tables()
    assert shop.fences(table) == {}


def test_a_table_may_lie_in_a_schema_of_its_own(shop: Shop) -> None:
    if shop.kind == "sqlite":
        name = "main.halfmq_fence"
    else:
        schema = str(shop.engine.url.database) if shop.kind != "postgresql" else "public"
        name = f"{schema}.halfmq_fence"
    fence = TransactionFence(shop.engine, table=name)
    fence.create_tables()
    assert shop.fences(name) == {}


def test_an_unknown_dialect_is_named() -> None:
    with pytest.raises(ConfigurationError, match="not on 'oracle'"):
        TransactionFence("sqlite:///x.db").sql("oracle")
