"""Joins rows and messages, and derives findings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions

from consumer_sdk.reconciliation import (
    DUPLICATE,
    IN_DOUBT,
    MESSAGE_WITHOUT_ROW,
    MISMATCH,
    ROW_WITHOUT_MESSAGE,
)
from halfmq_pipeline.reconcile.repair import REPAIR_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pyspark.sql import DataFrame

    from consumer_sdk.reconciliation import Window

__all__ = ["FINDING_COLUMNS", "findings_of", "judged"]

FINDING_COLUMNS = (
    "kind string, key string, at timestamp, row_time timestamp, message_time timestamp, visible_at timestamp,"
    " topic string, queue int, offset bigint, message_id string, details string"
)
_PLACE = "struct<topic:string,queue:int,offset:bigint,message_id:string>"
_PLACES_TOLD = 20
_LONGEST_DECIMAL = 38
_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_WITH_NULLS = "map('ignoreNullFields', 'false')"


def judged(rows: DataFrame, messages: DataFrame, window: Window, compare: Iterable[str]) -> DataFrame:
    """One row per row of the table, and per key of messages without one, with its classification.

    The columns are those of both sides, and ``row_judged``, ``missing``, ``in_doubt``, ``orphan`` and ``differences``
    (JSON, or null).
    """
    names = list(compare)
    values = "".join(f", message_{number}" for number in range(len(names)))
    newest = f"max_by(struct(message_time, visible_at, place{values}), struct(visible_at, place))"
    in_window = _within("message_time", window)
    by_key = messages.groupBy(
        "key",
        # Messages without a key are not duplicates of each other.
        functions.expr("CASE WHEN key IS NULL THEN place END AS alone"),
    ).agg(
        functions.expr("count_if(NOT half) AS messages"),
        functions.expr("count_if(half) AS halves"),
        functions.expr(f"count_if(NOT half AND {in_window}) AS messages_judged"),
        functions.expr(f"{newest} FILTER (WHERE NOT half) AS newest"),
        functions.expr(f"{newest} FILTER (WHERE NOT half AND {in_window}) AS newest_judged"),
        functions.expr("min(visible_at) FILTER (WHERE NOT half) AS first_visible_at"),
        functions.expr(f"slice(sort_array(collect_list(place) FILTER (WHERE NOT half)), 1, {_PLACES_TOLD}) AS places"),
    )
    types = [rows.schema[f"row_{number}"].dataType.simpleString() for number in range(len(names))]
    joined = (
        rows.join(by_key, "key", "full_outer")
        .withColumn("row_judged", functions.expr(f"coalesce({_within('row_time', window)}, false)"))
        .withColumn("messages", functions.expr("coalesce(messages, 0)"))
        .withColumn("halves", functions.expr("coalesce(halves, 0)"))
        .withColumn("messages_judged", functions.expr("coalesce(messages_judged, 0)"))
        .withColumn("missing", functions.expr("row_judged AND messages = 0 AND halves = 0"))
        .withColumn("in_doubt", functions.expr("row_judged AND messages = 0 AND halves > 0"))
        .withColumn("orphan", functions.expr("row_time IS NULL AND messages_judged > 0"))
        .withColumn("differences", functions.expr(_differences(names, types)))
    )
    # The repair's columns are kept only for rows to be repaired.
    for name in REPAIR_COLUMNS:
        if name in joined.columns:
            joined = joined.withColumn(name, functions.expr(f"CASE WHEN missing THEN {name} END"))
    return joined.drop("alone", *(f"row_{number}" for number in range(len(names))))


def _within(column: str, window: Window) -> str:
    return f"({column} >= {_moment(window.start)} AND {column} < {_moment(window.end)})"


def _moment(time: datetime) -> str:
    return f"TIMESTAMP '{time.isoformat()}'"


def _differences(names: list[str], types: list[str]) -> str:
    if not names:
        return "CAST(NULL AS string)"
    entries = []
    for number, (name, type_) in enumerate(zip(names, types, strict=True)):
        row, message = f"row_{number}", f"newest.message_{number}"
        # A value that does not fit the row's type is null after the cast, and must not be equal to the row's null.
        differs = f"NOT (({row} <=> try_cast({message} AS {_wide(type_)})) AND ({row} IS NULL) = ({message} IS NULL))"
        both = f"struct(CAST({row} AS string) AS row, {message} AS message)"
        quoted = name.replace("\\", "\\\\").replace("'", "\\'")
        entries.append(f"CASE WHEN {differs} THEN struct('{quoted}' AS name, {both} AS values) END")
    told = f"filter(array({', '.join(entries)}), each -> each IS NOT NULL)"
    return (
        f"CASE WHEN row_judged AND messages > 0 AND size({told}) > 0"
        f" THEN to_json(map_from_entries({told}), {_WITH_NULLS}) END"
    )


def _wide(type_: str) -> str:
    """The type for comparisons: for numbers the decimal with the most fraction digits, so that none is lost."""
    if type_ in _INTEGERS:
        return "decimal(38,18)"
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", type_):
        digits, scale = map(int, match.groups())
        return f"decimal({_LONGEST_DECIMAL},{_LONGEST_DECIMAL - (digits - scale)})"
    return type_


def findings_of(joined: DataFrame, *, unique: bool) -> DataFrame:
    """The findings, with FINDING_COLUMNS; ``at`` is the time of the row, or of the message where there is none."""
    row = ("row_time", f"CAST(NULL AS {_PLACE})", "CAST(NULL AS timestamp)", "CAST(NULL AS timestamp)")
    newest = ("row_time", "newest.place", "newest.message_time", "newest.visible_at")
    orphan = (
        "newest_judged.message_time",
        *(f"newest_judged.{name}" for name in ("place", "message_time", "visible_at")),
    )
    no_key = 'CASE WHEN key IS NULL THEN \'{{"reason":"the {} has no key"}}\' END'
    several = f"to_json(struct(messages, places), {_WITH_NULLS})"
    kinds = [
        _finding("missing", ROW_WITHOUT_MESSAGE, row, no_key.format("row")),
        _finding("in_doubt", IN_DOUBT, row, "to_json(struct(halves))"),
        _finding("orphan", MESSAGE_WITHOUT_ROW, orphan, no_key.format("message")),
        _finding("differences IS NOT NULL", MISMATCH, newest, "differences"),
    ]
    if unique:
        kinds.append(_finding("messages > 1 AND messages_judged > 0", DUPLICATE, orphan, several))
    found = joined.select(
        "key", "row_time", functions.expr(f"filter(array({', '.join(kinds)}), each -> each IS NOT NULL) AS found")
    ).where("size(found) > 0")
    return found.select("key", "row_time", functions.explode("found").alias("found")).selectExpr(
        "found.kind",
        "key",
        "found.at",
        "row_time",
        "found.message_time",
        "found.visible_at",
        *(f"found.place.{name}" for name in ("topic", "queue", "offset", "message_id")),
        "found.details",
    )


def _finding(condition: str, kind: str, values: tuple[str, ...], details: str) -> str:
    at, place, message_time, visible_at = values
    return (
        f"CASE WHEN {condition} THEN struct('{kind}' AS kind, {at} AS at, {place} AS place,"
        f" {message_time} AS message_time, {visible_at} AS visible_at, CAST({details} AS string) AS details) END"
    )
