"""Row events become messages: images, order, ids, transactions; on both servers."""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import TYPE_CHECKING

from connect.cdc.sources import Capture, Topic, settings
from halfmq_connect.cdc.ids import part_id, row_group

if TYPE_CHECKING:
    from connect.cdc.sources import Source

ROWS = int(os.environ.get("HALFMQ_CDC_ROWS", "5000"))
ORDERS = "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(40) NOT NULL, amount DECIMAL(8,2))"


def test_images_source_and_schema(source: Source, endpoint: str, topic: Topic) -> None:
    source.run(ORDERS)
    with Capture(settings(endpoint, source.host)) as running:
        source.run("INSERT INTO shop.orders VALUES (1, 'apple', 1.5)")
        topic.rows(1)
        source.run("UPDATE shop.orders SET item = 'pear' WHERE id = 1", "DELETE FROM shop.orders")
        inserted, updated, deleted = topic.rows(3)
    assert running.capture.progress.messages == 3
    apple, pear = ({"id": 1, "item": item, "amount": "1.50"} for item in ("apple", "pear"))
    assert [(each["op"], each["before"], each["after"]) for each in (inserted, updated, deleted)] == [
        ("c", None, apple),
        ("u", apple, pear),
        ("d", pear, None),
    ]
    told = updated["source"]
    assert (told["name"], told["server"], told["database"], told["table"]) == ("shop", source.kind, "shop", "orders")
    assert (told["server_id"], told["row"]) == (1, 0)
    assert told["committed_at"].endswith("Z")
    assert told["position"] > 0
    columns = {"id": "int", "item": "varchar(40)", "amount": "decimal(8,2)"}
    assert {json.dumps(each["schema"]) for each in (inserted, updated, deleted)} == {
        json.dumps({"columns": columns, "key": ["id"]})
    }
    for message in topic.messages:
        assert message.message_group == row_group("shop.orders", "[1]")
        assert message.properties["table"] == "shop.orders"
        assert message.tag in {"c", "r", "u", "d"}


def test_a_transaction_is_one_transaction_and_ids_are_derived(source: Source, endpoint: str, topic: Topic) -> None:
    source.run(ORDERS, "CREATE TABLE shop.stock (item VARCHAR(40) PRIMARY KEY, pieces INT)")
    with Capture(settings(endpoint, source.host)), source.connect(autocommit=False) as connection:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop.orders VALUES (1, 'apple', 1), (2, 'pear', 2)")
            cursor.execute("SAVEPOINT before_it")
            cursor.execute("INSERT INTO shop.orders VALUES (3, 'never', 3)")
            cursor.execute("ROLLBACK TO before_it")
            cursor.execute("INSERT INTO shop.stock VALUES ('apple', 7)")
            connection.commit()
            cursor.execute("INSERT INTO shop.orders VALUES (4, 'rolled back', 4)")
            connection.rollback()
            cursor.execute("INSERT INTO shop.orders VALUES (5, 'last', 5)")
            connection.commit()
        found = topic.rows(4)
    assert [(each["source"]["table"], each["source"]["row"]) for each in found] == [
        ("orders", 0), ("orders", 1), ("stock", 2), ("orders", 0),
    ]  # fmt: skip
    assert found[0]["source"]["gtid"] == found[2]["source"]["gtid"] != found[3]["source"]["gtid"]
    for message in topic.messages:
        told = json.loads(message.body)["source"]
        origin, _, number = told["gtid"].rpartition(":" if source.kind == "mysql" else "-")
        own = part_id("shop", origin, int(number), 0)
        assert message.transaction_id == own
        assert message.message_id == (f"{own}.{told['row']}" if told["row"] else own)


def test_a_changed_key_ends_one_row_and_begins_another(source: Source, endpoint: str, topic: Topic) -> None:
    source.run(ORDERS, "INSERT INTO shop.orders VALUES (1, 'apple', 1)")
    with Capture(settings(endpoint, source.host)):
        topic.rows(1)
        source.run("UPDATE shop.orders SET id = 2")
        _, deleted, created = topic.rows(3)
    assert (deleted["op"], deleted["before"]["id"], created["op"], created["after"]["id"]) == ("d", 1, "c", 2)
    groups = {message.tag: message.message_group for message in topic.messages}
    assert (groups["d"], groups["c"]) == (row_group("shop.orders", "[1]"), row_group("shop.orders", "[2]"))


def test_choice_of_tables_columns_topics_and_order(source: Source, endpoint: str, topic: Topic) -> None:
    source.run(ORDERS, "CREATE TABLE shop.secret (id INT PRIMARY KEY)", "CREATE TABLE shop.people LIKE shop.orders")
    tables = [
        {"match": "shop.orders", "topic": "rows", "exclude_columns": ["amount"], "order": "table"},
        {"match": "shop.peo*", "topic": "other", "columns": ["item"], "order": "none"},
    ]
    with Capture(settings(endpoint, source.host, table=tables)), closing(Topic(endpoint, "other")) as other:
        source.run(
            "INSERT INTO shop.secret VALUES (1)",
            "INSERT INTO shop.orders VALUES (1, 'apple', 1)",
            "INSERT INTO shop.people VALUES (1, 'ann', 1)",
        )
        (order,), (person,) = topic.rows(1), other.rows(1)
    assert order["after"] == {"id": 1, "item": "apple"}
    assert person["after"] == {"id": 1, "item": "ann"}
    assert list(person["schema"]["columns"]) == ["id", "item"]
    assert topic.messages[0].message_group == row_group("shop.orders", "")
    assert not other.messages[0].message_group


def test_a_table_that_is_changed_emptied_and_made_anew(source: Source, endpoint: str, topic: Topic) -> None:
    source.run(ORDERS)
    with Capture(settings(endpoint, source.host)):
        source.run(
            "INSERT INTO shop.orders VALUES (1, 'apple', 1)",
            "ALTER TABLE shop.orders ADD COLUMN note TEXT FIRST, DROP COLUMN amount",
            "INSERT INTO shop.orders VALUES ('new', 2, 'pear')",
            "ALTER TABLE shop.orders RENAME COLUMN item TO thing",
            "TRUNCATE TABLE shop.orders",
            "CREATE TABLE shop.more (id INT PRIMARY KEY)",
            "INSERT INTO shop.more VALUES (1)",
            "DROP TABLE shop.orders",
            "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1)",
        )
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("USE shop")
            cursor.execute("/* a comment */ truncate `orders`")
        found = topic.rows(6)
    assert [(each["op"], each["after"]) for each in found] == [
        ("c", {"id": 1, "item": "apple", "amount": "1.00"}),
        ("c", {"note": "new", "id": 2, "item": "pear"}),
        ("t", None),
        ("c", {"id": 1}),
        ("c", {"id": 1}),
        ("t", None),
    ]


def test_a_large_transaction_comes_at_once_in_parts(source: Source, endpoint: str, topic: Topic) -> None:
    """More rows than one transaction has at the broker: parts of an epoch, in bounded memory."""
    source.run(
        "CREATE TABLE shop.lots (id INT PRIMARY KEY, note VARCHAR(100))", "CREATE TABLE shop.mark (id INT PRIMARY KEY)"
    )
    with Capture(settings(endpoint, source.host)) as running, source.connect(autocommit=False) as connection:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop.mark VALUES (1)")
            connection.commit()
            for start in range(0, ROWS, 500):
                rows = ",".join(f"({start + i}, REPEAT('x', 100))" for i in range(500))
                cursor.execute(f"INSERT INTO shop.lots VALUES {rows}")
            connection.commit()
            cursor.execute("INSERT INTO shop.mark VALUES (2)")
            connection.commit()
        found = topic.rows(ROWS + 2)
    assert running.capture.progress.transactions >= 2
    large = [each for each in found if each["source"]["table"] == "lots"]
    assert [each["after"]["id"] for each in large] == list(range(ROWS))
    assert [each["source"]["row"] for each in large] == list(range(ROWS))
    assert len({message.stored_at for message in topic.messages if b'"lots"' in message.body}) == 1
    assert len({message.transaction_id for message in topic.messages if b'"lots"' in message.body}) == ROWS // 1000
