"""Every type of column, its extremes and NULL: the same from the log, from the snapshot, and as the server says."""

from __future__ import annotations

import base64
import json
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from connect.cdc.sources import Capture, Source, Topic, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

Case = tuple[str, str, Any, str]
"""A type, a value of it as an SQL expression, that value in JSON, and the type in the schema if it is not the same."""


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def single(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


POINT = {"srid": 0, "wkb": b64(bytes.fromhex("0101000000000000000000f03f0000000000000040"))}
CASES: Sequence[Case] = (
    ("tinyint", "-128", -128, ""),
    ("tinyint unsigned", "255", 255, ""),
    ("tinyint(1)", "TRUE", 1, "tinyint"),
    ("smallint", "-32768", -32768, ""),
    ("smallint unsigned", "65535", 65535, ""),
    ("mediumint", "-8388608", -8388608, ""),
    ("mediumint unsigned", "16777215", 16777215, ""),
    ("int", "-2147483648", -2147483648, ""),
    ("int unsigned", "4294967295", 4294967295, ""),
    ("int(8) unsigned zerofill", "42", 42, "int unsigned"),
    ("bigint", "-9223372036854775808", -(2**63), ""),
    ("bigint unsigned", "18446744073709551615", 2**64 - 1, ""),
    ("float", "0.1", single(0.1), ""),
    ("float", "-3.4028234e38", single(-3.4028234e38), ""),
    ("double", "0.1", 0.1, ""),
    ("double", "1.7976931348623157e308", 1.7976931348623157e308, ""),
    ("double", "-2.2250738585072014e-308", -2.2250738585072014e-308, ""),
    ("decimal(12,3)", "-12.5", "-12.500", ""),
    ("decimal(5,0)", "-99999", "-99999", ""),
    ("decimal(5,5)", "0.00001", "0.00001", ""),
    ("decimal(65,30)", "-" + "9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30, ""),
    ("decimal(19,9)", "1000000000.000000001", "1000000000.000000001", ""),
    ("decimal(10,2) unsigned", "0", "0.00", ""),
    ("bit(1)", "b'1'", 1, ""),
    ("bit(10)", "b'1100000001'", 769, ""),
    ("bit(64)", "0xFFFFFFFFFFFFFFFF", 2**64 - 1, ""),
    ("year", "2155", 2155, ""),
    ("year", "0", 0, ""),
    ("date", "'9999-12-31'", "9999-12-31", ""),
    ("date", "'0000-00-00'", "0000-00-00", ""),
    ("date", "'2024-00-00'", "2024-00-00", ""),
    ("datetime", "'1000-01-01 00:00:00'", "1000-01-01T00:00:00", ""),
    ("datetime(1)", "'2024-02-29 23:59:59.9'", "2024-02-29T23:59:59.9", ""),
    ("datetime(3)", "'2024-02-29 23:59:59.999'", "2024-02-29T23:59:59.999", ""),
    ("datetime(6)", "'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999", ""),
    ("datetime(6)", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00.000000", ""),
    ("timestamp", "'2024-01-02 03:04:05'", "2024-01-01T22:04:05Z", ""),
    ("timestamp(5)", "'2024-01-02 03:04:05.67891'", "2024-01-01T22:04:05.67891Z", ""),
    ("timestamp(6)", "'2038-01-19 08:14:07.999999'", "2038-01-19T03:14:07.999999Z", ""),
    ("timestamp(6)", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00.000000Z", ""),
    ("time", "'-838:59:59'", "-838:59:59", ""),
    ("time(3)", "'-12:13:14.567'", "-12:13:14.567", ""),
    ("time(6)", "'-00:00:00.000001'", "-00:00:00.000001", ""),
    ("time(6)", "'838:59:58.999999'", "838:59:58.999999", ""),
    ("time(1)", "'00:00:00.1'", "00:00:00.1", ""),
    ("char(5)", "' ab '", " ab", ""),
    ("char(200)", "REPEAT('é', 200)", "é" * 200, ""),
    ("varchar(40)", "'é😀 \\\\ \" \\n'", 'é😀 \\ " \n', ""),
    ("varchar(300)", "REPEAT('€', 300)", "€" * 300, ""),
    ("varchar(20) CHARACTER SET latin1", "'ü€'", "ü€", "varchar(20)"),
    ("varchar(20) CHARACTER SET utf16", "'aü😀'", "aü😀", "varchar(20)"),
    ("varchar(20) CHARACTER SET sjis", "'日本'", "日本", "varchar(20)"),
    ("varchar(20) COLLATE utf8mb4_bin", "''", "", "varchar(20)"),
    ("tinytext", "'t'", "t", ""),
    ("text", "'t€'", "t€", ""),
    ("mediumtext", "REPEAT('m', 70000)", "m" * 70000, ""),
    ("longtext", "'l'", "l", ""),
    ("binary(8)", "x'0100020000'", b64(b"\1\0\2\0\0\0\0\0"), ""),
    ("binary(16)", "REPEAT(x'00', 16)", b64(bytes(16)), ""),
    ("varbinary(10)", "x'00FF00'", b64(b"\0\xff\0"), ""),
    ("tinyblob", "x''", "", ""),
    ("blob", "x'00FF'", b64(b"\0\xff"), ""),
    ("longblob", "x'FE'", b64(b"\xfe"), ""),
    ("enum('x','y''s','ü')", "'y''s'", "y's", ""),
    ("enum('x','y')", "''", "", ""),
    ("set('a','b','c')", "'c,a'", ["a", "c"], ""),
    ("set('a','b','c')", "''", [], ""),
    ("point", "ST_GeomFromText('POINT(1 2)')", POINT, "geometry"),
    ("geometry", "ST_GeomFromText('POINT(1 2)')", POINT, ""),
)
DOCUMENTS = (
    '{"a": [1, -2.5, "x", null, true, false, {}], "b": {"c": []}}',
    "[18446744073709551615, -9223372036854775808, 4294967296, -65537, 65536, 1e300, 1e-7, 0.1, 1e20]",
    '"é😀\\n\\""',
    "null",
    "12345",
)
ZONE = "SET time_zone = '+05:00', sql_mode = ''"


def insert_all(source: Source, key: int) -> None:
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute(ZONE)
        marks = ", ".join(value for _, value, _, _ in CASES)
        cursor.execute(f"INSERT INTO shop.types VALUES ({key}, {marks})")
        cursor.execute(f"INSERT INTO shop.types (id) VALUES ({key + 1})")


def test_every_type_from_the_log_and_from_the_snapshot(source: Source, endpoint: str, topic: Topic) -> None:
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute(ZONE)
        columns = ", ".join(f"c{number} {kind} NULL" for number, (kind, *_) in enumerate(CASES))
        cursor.execute(f"CREATE TABLE shop.types (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    insert_all(source, 1)
    with Capture(settings(endpoint, source.host)):
        insert_all(source, 3)
        found = topic.rows(4)
    copied, logged = found[:2], found[2:]
    names = [f"c{number}" for number in range(len(CASES))]
    for rows in (copied, logged):
        (full,) = (each for each in rows if each["after"]["id"] % 2)
        (empty,) = (each for each in rows if each["after"]["id"] % 2 == 0)
        for name, (kind, value, expected, _) in zip(names, CASES, strict=True):
            assert full["after"][name] == expected, f"{rows[0]['op']}: {kind} {value}"
        assert [empty["after"][name] for name in names] == [None] * len(names)
        for name, (kind, _, _, shown) in zip(names, CASES, strict=True):
            assert full["schema"]["columns"][name] == (shown or kind), kind
    assert copied[0]["schema"] == logged[0]["schema"]


def test_what_follows_columns_of_every_type_that_are_left_out(source: Source, endpoint: str, topic: Topic) -> None:
    """They are passed over: with values, with NULL, and in both images."""
    every = [(kind, value) for kind, value, *_ in CASES] + [("json", "'[1, {\"a\": 2}]'")]
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute(ZONE)
        columns = ", ".join(f"c{number} {kind} NULL, n{number} INT" for number, (kind, _) in enumerate(every))
        cursor.execute(f"CREATE TABLE shop.types (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
        kept = [f"n{number}" for number in range(len(every))]
        table = [{"match": "shop.*", "topic": "rows", "columns": kept}]
        values = ", ".join(f"{value}, {number}" for number, (_, value) in enumerate(every))
        cursor.execute(f"INSERT INTO shop.types VALUES (1, {values})")
        with Capture(settings(endpoint, source.host, table=table)):
            cursor.execute(f"INSERT INTO shop.types VALUES (2, {values})")
            cursor.execute("UPDATE shop.types SET n0 = n0, c0 = 1 WHERE id = 2")
            cursor.execute("DELETE FROM shop.types WHERE id = 2")
            cursor.execute("INSERT INTO shop.types (id, n0) VALUES (3, 7)")
            found = topic.rows(5)
    row = {name: number for number, name in enumerate(kept)}
    two = {"id": 2, **row}
    assert [(each["op"], each["before"], each["after"]) for each in found] == [
        ("r", None, {"id": 1, **row}),
        ("c", None, two),
        ("u", two, two),
        ("d", two, None),
        ("c", None, {"id": 3, **dict.fromkeys(kept), "n0": 7}),
    ]


def test_json_documents(source: Source, endpoint: str, topic: Topic) -> None:
    """As text: a document has numbers that programs' floats cannot hold."""
    source.run("CREATE TABLE shop.documents (id INT PRIMARY KEY, document JSON)")
    expressions = ["CAST(%s AS JSON)" if source.kind == "mysql" else "%s"] * len(DOCUMENTS)
    values = list(DOCUMENTS)
    exact: list[str] = []
    if source.kind == "mysql":  # Values that only its own functions make.
        exact = [
            "JSON_ARRAY(CAST(1.50 AS DECIMAL(10,2)), CAST(-0.001 AS DECIMAL(6,3)))",
            "JSON_ARRAY(CAST('2024-02-29 23:59:59.123456' AS DATETIME(6)), CAST('2024-02-29' AS DATE))",
            "JSON_ARRAY(CAST('-12:13:14.5' AS TIME(6)), CAST(x'00FF' AS BINARY))",
            "JSON_OBJECT('large', JSON_ARRAY(REPEAT('x', 70000), 1, 70000, NULL))",
        ]
    with source.connect() as connection, connection.cursor() as cursor:

        def insert(first: int) -> None:
            for number, (mark, value) in enumerate(zip(expressions, values, strict=True)):
                cursor.execute(f"INSERT INTO shop.documents VALUES ({first + number}, {mark})", (value,))
            for number, expression in enumerate(exact, len(values)):
                cursor.execute(f"INSERT INTO shop.documents VALUES ({first + number}, {expression})")

        insert(0)
        count = len(values) + len(exact)
        with Capture(settings(endpoint, source.host)):
            insert(100)
            found = {each["after"]["id"]: each["after"]["document"] for each in topic.rows(2 * count)}
        shown = dict(source.ask("SELECT id, CAST(document AS CHAR) FROM shop.documents"))
    for number in range(count):
        # Exact also where floats are not: numbers are compared by their digits.
        parsed = [json.loads(text, parse_float=Decimal) for text in (found[number], found[100 + number])]
        assert parsed[0] == parsed[1] == json.loads(shown[number], parse_float=Decimal)
