"""The columns of tables whose rows move."""

from __future__ import annotations

from functools import cache

from broker.storage.tables.schema import metadata

_NUMBERED_ANEW = {"operator_action": "action_id"}
"""Columns whose number means nothing elsewhere: the database that they come to gives another one."""


@cache
def columns_of(table: str) -> str:
    """The names of a table's columns, separated by commas."""
    left_out = _NUMBERED_ANEW.get(table)
    return ", ".join(column.name for column in metadata.tables[table].columns if column.name != left_out)


@cache
def places_of(columns: str) -> dict[str, int]:
    """Where each of these columns is in a row."""
    return {name: at for at, name in enumerate(columns.split(", "))}
