"""Tables that are unlike others: names, partitions, generated columns, engines; and logs without checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connect.cdc.sources import Capture, Topic, settings

if TYPE_CHECKING:
    from connect.cdc.sources import Source


def test_names_partitions_generated_columns_and_engines(source: Source, endpoint: str, topic: Topic) -> None:
    source.run(
        'CREATE TABLE shop.`we %s "ird`` t\'é` (`k"ey` VARCHAR(20), `col 100% \'é` INT, PRIMARY KEY (`k"ey`))',
        "CREATE TABLE shop.parts (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 4",
        "CREATE TABLE shop.made (id INT PRIMARY KEY, a INT, b INT AS (a + 1) STORED, c INT AS (a + 2) VIRTUAL)",
        "CREATE TABLE shop.old (id INT PRIMARY KEY, v INT) ENGINE=MyISAM",
        "CREATE TABLE shop.two (a INT, b VARCHAR(10), v INT, PRIMARY KEY (b, a))",
    )
    inserts = [
        "INSERT INTO shop.`we %s \"ird`` t'é` VALUES ('{0}', {0})",
        "INSERT INTO shop.parts VALUES ({0}, 1)",
        "INSERT INTO shop.made (id, a) VALUES ({0}, 5)",
        "INSERT INTO shop.old VALUES ({0}, 1)",
        "INSERT INTO shop.two VALUES ({0}, 'x', 1)",
    ]
    source.run(*(insert.format(1) for insert in inserts))
    with Capture(settings(endpoint, source.host)):
        source.run(
            *(insert.format(2) for insert in inserts),
            "UPDATE shop.parts SET v = 2, id = 7 WHERE id = 2",
            "UPDATE shop.parts SET v = 3 WHERE id = 1",
        )
        found = topic.rows(13)
    copied, logged = found[:5], found[5:10]
    assert [each["op"] for each in found] == ["r"] * 5 + ["c"] * 5 + ["d", "c", "u"]
    by_table = {each["source"]["table"]: each for each in copied}
    for row in logged:
        other = by_table[row["source"]["table"]]
        assert row["schema"] == other["schema"]
        assert row["after"].keys() == other["after"].keys()
    made = next(each for each in logged if each["source"]["table"] == "made")
    assert made["after"] == {"id": 2, "a": 5, "b": 6, "c": 7}
    assert by_table["made"]["after"] == {"id": 1, "a": 5, "b": 6, "c": 7}
    assert by_table["we %s \"ird` t'é"]["after"] == {'k"ey': "1", "col 100% 'é": 1}
    assert next(each for each in copied if each["source"]["table"] == "two")["schema"]["key"] == ["b", "a"]


def test_logs_without_checksums(source: Source, endpoint: str, topic: Topic) -> None:
    source.run("CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(40))")
    try:
        with Capture(settings(endpoint, source.host)):
            source.run("INSERT INTO shop.orders VALUES (1, 'with')", "SET GLOBAL binlog_checksum = NONE")
            source.run("INSERT INTO shop.orders VALUES (2, 'without')")
            topic.rows(2)
        with Capture(settings(endpoint, source.host)):
            source.run("INSERT INTO shop.orders VALUES (3, 'without')", "SET GLOBAL binlog_checksum = CRC32")
            source.run("INSERT INTO shop.orders VALUES (4, 'with')")
            found = topic.rows(4)
    finally:
        source.run("SET GLOBAL binlog_checksum = CRC32")
    assert [each["after"]["item"] for each in found] == ["with", "without", "without", "with"]


def test_an_event_that_is_larger_than_a_packet(source: Source, endpoint: str, topic: Topic) -> None:
    """Packets have 16 MiB at most; rows of tables that are not published may be larger."""
    ((usual,),) = source.ask("SELECT @@GLOBAL.max_allowed_packet")
    source.run(
        "CREATE TABLE shop.files (id INT PRIMARY KEY, content LONGBLOB)",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
        "SET GLOBAL max_allowed_packet = 67108864",
    )
    try:
        with Capture(settings(endpoint, source.host, table=[{"match": "shop.orders", "topic": "rows"}])):
            for size in (2**24 - 100, 2**24 + 100, 2**25 + 100):
                source.run(f"INSERT INTO shop.files VALUES ({size}, REPEAT('x', {size}))")
            source.run("INSERT INTO shop.orders VALUES (1)")
            topic.rows(1)
    finally:
        source.run(f"SET GLOBAL max_allowed_packet = {usual}", "DROP TABLE shop.files", "FLUSH BINARY LOGS")
