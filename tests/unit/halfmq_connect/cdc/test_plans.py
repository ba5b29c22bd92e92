"""How rows become messages is worked out once for each version of a table, and not kept for ever."""

from __future__ import annotations

from halfmq_connect.cdc.binlog.table_map import Column, TableMap
from halfmq_connect.cdc.binlog.values import skipper_of
from halfmq_connect.cdc.config import BrokerSettings, CdcSettings, DatabaseSettings, TableSettings
from halfmq_connect.cdc.messages import _PLANS, Converter, TableChoice


def test_plans_of_earlier_versions_and_of_many_tables_are_dropped() -> None:
    told = CdcSettings(
        "shop",
        BrokerSettings("127.0.0.1:1"),
        DatabaseSettings(("127.0.0.1:1",), "user", 1),
        (TableSettings("shop.*", "rows"),),
    )
    converter = Converter(told, "mysql", TableChoice(told))

    def published(table: str, column: str) -> bytes:
        columns = (Column(column, "int", skipper_of(3, 0, name=column)),)
        (message,) = converter.changed(TableMap("shop", table, columns, (0,)), ("c", None, [7]), 4)
        return message.body

    for number in range(50):
        assert f'{{"column{number}":7}}'.encode() in published("orders", f"column{number}")
    assert len(converter._plans) == 1
    for number in range(2 * _PLANS):
        published(f"table{number}", "id")
    assert len(converter._plans) == _PLANS
    assert b'{"id":7}' in published("table0", "id")
