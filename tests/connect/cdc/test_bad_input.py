"""What cannot work is refused at the door; what cannot be followed stops it. Each with a text that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from connect.cdc.sources import Capture, CaptureProcess, Source, Topic, file_of, settings
from halfmq_connect.cdc.binlog.dump import Dump
from halfmq_connect.cdc.binlog.events import TABLE_MAP, XID
from halfmq_connect.cdc.binlog.transactions import Transactions
from halfmq_connect.cdc.database import Source as Database
from halfmq_connect.cdc.errors import CannotFollow, WrongSetting
from halfmq_connect.cdc.messages import TableChoice
from halfmq_connect.cdc.outbox import CREATE_OUTBOX
from halfmq_connect.cdc.run import check

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(40))"


def refused(source: Source, *words: str, **changes: Any) -> WrongSetting:
    with pytest.raises(WrongSetting) as found:
        check(settings("127.0.0.1:1", source.host, **changes))
    for word in words:
        assert word in f"{found.value.field}: {found.value}"
    return found.value


@pytest.mark.parametrize(
    ("name", "value", "usual", "words"),
    [
        ("binlog_row_image", "MINIMAL", "FULL", "binlog_row_image=FULL"),
        ("binlog_row_metadata", "MINIMAL", "FULL", "binlog_row_metadata=FULL"),
        ("binlog_format", "STATEMENT", "ROW", "binlog_format=ROW"),
        ("gtid_mode", "ON_PERMISSIVE", "ON", "gtid_mode=ON"),
        ("binlog_transaction_compression", "ON", "OFF", "set it OFF"),
        ("binlog_row_value_options", "PARTIAL_JSON", "''", "empty text"),
        ("log_bin_compress", "ON", "OFF", "set it OFF"),
    ],
)
def test_settings_of_the_server(source: Source, name: str, value: str, usual: str, words: str) -> None:
    if not source.ask(f"SHOW GLOBAL VARIABLES LIKE '{name}'") or (name == "binlog_format" and source.kind == "mysql"):
        return  # The other server's; MySQL has given up the one for the format.
    source.run(ORDERS, f"SET GLOBAL {name} = {value}")
    try:
        refused(source, name, words)
    finally:
        source.run(f"SET GLOBAL {name} = {usual}")


def test_tables_and_their_keys(source: Source) -> None:
    source.run(ORDERS)
    missing = [{"match": "shop.nothing", "topic": "rows"}]
    refused(source, "table[0].match", "shop.nothing", table=missing)
    columns = [{"match": "shop.orders", "topic": "rows", "columns": ["id", "colour"]}]
    refused(source, "columns", "colour", table=columns)
    refused(source, "outbox.table", "--outbox-sql", outbox={"table": "shop.outbox"})
    refused(source, "server_id", database={"server_id": 1})
    source.run("CREATE TABLE shop.loose (a INT)")
    refused(source, "shop.loose", "no primary key", "exclude the table")
    source.run("DROP TABLE shop.loose", "CREATE TABLE shop.kinds (kind ENUM('x', 'y') PRIMARY KEY)")
    refused(source, "shop.kinds", "snapshot = false")
    source.run("DROP TABLE shop.kinds")
    assert check(settings("127.0.0.1:1", source.host)) == ["shop.orders"]


def test_cascades_that_leave_no_trace(source: Source) -> None:
    source.run(
        ORDERS,
        "CREATE TABLE shop.parts (id INT PRIMARY KEY, of_order INT,"
        " CONSTRAINT of_it FOREIGN KEY (of_order) REFERENCES shop.orders (id) ON DELETE CASCADE)",
    )
    if source.kind == "mysql" and int(source.ask("SELECT VERSION()")[0][0].split(".")[0]) >= 9:
        assert len(check(settings("127.0.0.1:1", source.host))) == 2
    else:
        refused(source, "of_it", "accept_cascades")
    accepted = [{"match": "shop.*", "topic": "rows", "accept_cascades": True}]
    assert len(check(settings("127.0.0.1:1", source.host, table=accepted))) == 2
    source.run("DROP TABLE shop.parts")


def test_rights(source: Source, endpoint: str) -> None:
    source.run(
        ORDERS, "DROP USER IF EXISTS weak", "CREATE USER weak IDENTIFIED BY 'halfmq'", "GRANT SELECT ON shop.* TO weak"
    )
    refused(source, "user", "wrong", database={"user": "wrong"})
    refused(source, "user", "REPLICATION SLAVE", database={"user": "weak"})
    source.run("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO weak", "REVOKE SELECT ON shop.* FROM weak")
    named = [{"match": "shop.orders", "topic": "rows"}]
    refused(source, "shop.orders", "may not read it", database={"user": "weak"}, table=named)
    source.run("GRANT SELECT ON shop.* TO weak", "INSERT INTO shop.orders VALUES (1, 'apple')")
    running = Capture(settings(endpoint, source.host, database={"user": "weak"}), wait=source.kind == "mariadb")
    if source.kind == "mysql":
        assert "LOCK TABLES" in str(running.failure())
        source.run("GRANT LOCK TABLES ON shop.* TO weak")
        running = Capture(settings(endpoint, source.host, database={"user": "weak"}))
    running.stop()
    assert running.error is None


def stopped(source: Source, endpoint: str, topic: Topic, *statements: str, session: str = "") -> str:
    """What stops it when these are run, with nothing published of them or after them."""
    source.run("CREATE TABLE shop.other (id INT PRIMARY KEY)", ORDERS)
    running = Capture(settings(endpoint, source.host))
    source.run("INSERT INTO shop.orders VALUES (1, 'before it')")
    topic.rows(1)
    with source.connect() as connection, connection.cursor() as cursor:
        for statement in (session, *statements):
            if statement:
                cursor.execute(statement)
    source.run("INSERT INTO shop.orders VALUES (99, 'after it')")
    error = running.failure()
    assert isinstance(error, CannotFollow), error
    topic.rows(1)
    again = Capture(settings(endpoint, source.host), wait=False)
    assert str(again.failure()) == str(error)
    return str(error)


def test_statements_in_the_log(source: Source, endpoint: str, topic: Topic) -> None:
    session = "SET SESSION binlog_format = STATEMENT"
    text = stopped(source, endpoint, topic, "INSERT INTO shop.orders VALUES (2, 'x')", session=session)
    assert "binlog_format=ROW" in text
    assert "snapshot" in text


def test_images_without_columns(source: Source, endpoint: str, topic: Topic) -> None:
    session = "SET SESSION binlog_row_image = MINIMAL"
    text = stopped(source, endpoint, topic, "UPDATE shop.orders SET item = 'x'", session=session)
    assert "binlog_row_image=FULL" in text


def test_xa_transactions_that_are_prepared(source: Source, endpoint: str, topic: Topic) -> None:
    text = stopped(
        source, endpoint, topic,
        "XA START 'x'", "INSERT INTO shop.orders VALUES (2, 'x')", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'",
    )  # fmt: skip
    assert "XA" in text


def test_a_primary_key_that_is_dropped(source: Source, endpoint: str, topic: Topic) -> None:
    text = stopped(
        source, endpoint, topic,
        "ALTER TABLE shop.orders DROP PRIMARY KEY", "INSERT INTO shop.orders VALUES (2, 'x')",
        "ALTER TABLE shop.orders ADD PRIMARY KEY (id)",
    )  # fmt: skip
    assert "no primary key" in text


def test_compressed_transactions(source: Source, endpoint: str, topic: Topic) -> None:
    if source.kind == "mariadb":
        source.run("SET GLOBAL log_bin_compress_min_len = 10")
        return  # Its setting is global, and looked at at the door.
    session = "SET SESSION binlog_transaction_compression = ON"
    text = stopped(source, endpoint, topic, "INSERT INTO shop.orders VALUES (2, REPEAT('x', 40))", session=session)
    assert "binlog_transaction_compression=OFF" in text


def test_numbers_of_transactions_that_go_back(source: Source, endpoint: str, topic: Topic) -> None:
    """A position of MariaDB has one number of each domain: what comes behind it with a lower one would be lost."""
    if source.kind == "mysql":
        return  # Its positions are sets.
    source.run("SET GLOBAL gtid_strict_mode = OFF")
    try:
        number = int(source.ask("SELECT @@GLOBAL.gtid_binlog_pos")[0][0].split("-")[2])
        source.run("CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        running = Capture(settings(endpoint, source.host))
        with source.connect() as connection, connection.cursor() as cursor:
            for row, further in ((1, 1000), (2, 500)):
                cursor.execute(f"SET gtid_seq_no = {number + further}")
                cursor.execute(f"INSERT INTO shop.orders VALUES ({row})")
        error = running.failure()
    finally:
        source.run("SET GLOBAL gtid_strict_mode = ON")
    assert isinstance(error, CannotFollow)
    assert "gtid_strict_mode=ON" in str(error)
    topic.rows(1)


def test_bytes_that_are_no_text(source: Source, endpoint: str, topic: Topic) -> None:
    """0xFF 0xFF is no character of ujis; it came into the column as bytes."""
    source.run("CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(40) CHARACTER SET ujis)")
    running = Capture(settings(endpoint, source.host))
    source.run("INSERT INTO shop.orders VALUES (1, x'F5A1')")
    error = running.failure()
    assert isinstance(error, CannotFollow), error
    assert "shop.orders cannot be decoded" in str(error)
    assert topic.read() == []


def test_compressed_columns(source: Source, endpoint: str) -> None:
    if source.kind == "mysql":
        return  # There pages are compressed, not columns.
    create = "CREATE TABLE shop.orders (id INT PRIMARY KEY, a VARCHAR(40) COMPRESSED, b INT UNSIGNED)"
    source.run(create)
    refused(source, "shop.orders.a", "compressed")
    source.run("DROP TABLE shop.orders")
    running = Capture(settings(endpoint, source.host))  # One that is made later.
    source.run(create, "INSERT INTO shop.orders VALUES (1, REPEAT('x', 40), 1)")
    error = running.failure()
    assert isinstance(error, CannotFollow)
    assert "shop.orders.a has a type that is not known" in str(error)


VERSIONED = "CREATE TABLE shop.{} (id INT PRIMARY KEY, item VARCHAR(40)) WITH SYSTEM VERSIONING"


def test_system_versioned_tables_are_refused(source: Source) -> None:
    """The log tells their earlier versions as inserted rows, and in an outbox those would be messages."""
    if source.kind == "mysql":
        return  # It has none.
    source.run(VERSIONED.format("orders"), ORDERS.replace("orders", "plain"))
    refused(source, "table.match", "shop.orders is system-versioned", "DROP SYSTEM VERSIONING")
    refused(source, "outbox.table", "shop.orders", table=[], outbox={"table": "shop.orders"})
    named = [{"match": "shop.plain", "topic": "rows"}]
    assert check(settings("127.0.0.1:1", source.host, table=named)) == ["shop.plain"]


@pytest.mark.parametrize(
    "statements",
    [
        [VERSIONED.format("later")],
        [ORDERS.replace("orders", "later"), "ALTER TABLE shop.later ADD SYSTEM VERSIONING"],
        ["CREATE TABLE shop.later LIKE aside.kept", "INSERT INTO shop.later VALUES (1, 'x')"],
    ],
    ids=["created", "altered", "alike"],
)
def test_tables_that_become_system_versioned(
    source: Source, endpoint: str, topic: Topic, statements: list[str]
) -> None:
    if source.kind == "mysql":
        return
    source.run(
        "DROP DATABASE IF EXISTS aside", "CREATE DATABASE aside", "CREATE TABLE shop.orders (id INT PRIMARY KEY)"
    )
    with Capture(settings(endpoint, source.host)):
        source.run(VERSIONED.format("kept").replace("shop", "aside"), "INSERT INTO aside.kept VALUES (1, 'x')")
        source.run("INSERT INTO shop.orders VALUES (1)")
        topic.rows(1)
    running = Capture(settings(endpoint, source.host))
    source.run(*statements)
    error = running.failure()
    assert isinstance(error, CannotFollow), error
    assert "shop.later is system-versioned" in str(error)
    assert len(topic.read()) == 1


def test_a_damaged_log_is_told(source: Source) -> None:
    """The events of a transaction, cut at every byte, and with each byte changed."""
    kinds = "(id INT PRIMARY KEY, a VARCHAR(40), b ENUM('x', 'y'), c SET('p', 'q'), d DECIMAL(8,2), e BIT(3), f TEXT)"
    source.run(f"CREATE TABLE shop.orders {kinds}")
    told = settings("127.0.0.1:1", source.host)
    server = Database(told.database, source.host)
    dump = Dump(told.database, server, server.executed())
    charsets, choice = server.charsets(), TableChoice(told)
    source.run("INSERT INTO shop.orders VALUES (1, 'apple', 'x', 'p,q', 1.5, 1, 'text')")
    read = []
    for event in dump:
        read.append(event)
        if event.kind == XID:
            break
    dump.close()
    server.close()

    def outcome(index: int, body: bytes) -> str:
        """The error, if there is one; any other than a refusal is one of the test."""
        changed = [*read[:index], read[index]._replace(body=body), *read[index + 1 :]]
        try:
            list(Transactions(charsets, choice, mariadb=server.mariadb).read(changed))
        except CannotFollow as error:
            return str(error)
        return ""

    assert {outcome(index, event.body) for index, event in enumerate(read)} == {""}
    ((index, table_map),) = [each for each in enumerate(read) if each[1].kind == TABLE_MAP]
    text = outcome(index, table_map.body[:-1])
    assert f"the log is damaged, at {source.ask('SHOW BINARY LOGS')[-1][0]}:{table_map.end}" in text
    assert "the description of a table" in text
    assert "--new-snapshot" in text
    for number, event in enumerate(read):
        for at in range(len(event.body)):
            outcome(number, event.body[:at])
            for value in (0, 0xFF, event.body[at] ^ 1, event.body[at] ^ 0x80):
                outcome(number, event.body[:at] + bytes([value]) + event.body[at + 1 :])


def test_partial_documents(source: Source, endpoint: str, topic: Topic) -> None:
    if source.kind == "mariadb":
        return  # It has none.
    source.run("CREATE TABLE shop.documents (id INT PRIMARY KEY, document JSON)", ORDERS)
    source.run("INSERT INTO shop.documents VALUES (1, JSON_OBJECT('a', REPEAT('x', 1000), 'b', 1))")
    update = "UPDATE shop.documents SET document = JSON_SET(document, '$.b', 2)"
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_row_value_options = PARTIAL_JSON")
        with Capture(settings(endpoint, source.host, table=[{"match": "shop.orders", "topic": "rows"}])):
            cursor.execute(update)
            source.run("INSERT INTO shop.orders VALUES (1, 'behind one of another table')")
            topic.rows(1)
        running = Capture(settings(endpoint, source.host))
        cursor.execute(update.replace("2)", "3)"))
        assert "PARTIAL_JSON" in str(running.failure())


def named(source: Source, endpoint: str, statement: str, *words: str, **changes: Any) -> None:
    """What stops it when this is run names these."""
    running = Capture(settings(endpoint, source.host, **changes))
    source.run(statement)
    variable = "gtid_executed" if source.kind == "mysql" else "gtid_binlog_pos"
    position = source.ask(f"SELECT @@GLOBAL.{variable}")[0][0].replace("\n", "")
    gtid = position if source.kind == "mariadb" else position.rpartition("-")[2]
    text = str(running.failure())
    assert isinstance(running.error, CannotFollow)
    for word in (*words, gtid, "Nothing was skipped", "exclude_columns"):
        assert word in text


def test_a_row_that_is_too_large_is_named(source: Source, endpoint: str, topic: Topic) -> None:
    """One beyond the broker's own limit, and one that no request can hold."""
    ((usual,),) = source.ask("SELECT @@GLOBAL.max_allowed_packet")
    source.run(
        "CREATE TABLE shop.files (id INT, name VARCHAR(9), content LONGTEXT, PRIMARY KEY (id, name))",
        "SET GLOBAL max_allowed_packet = 134217728",
    )
    without = [{"match": "shop.*", "topic": "rows", "exclude_columns": ["content"]}]
    try:
        insert = "INSERT INTO shop.files VALUES ({0}, 'small', 'x'), ({0}, 'big', REPEAT('x', {1}))"
        words = ('{"id":1,"name":"big"} of shop.files', "BODY_TOO_LARGE")
        named(source, endpoint, insert.format(1, 5_000_000), *words)
        assert topic.read() == []
        with Capture(settings(endpoint, source.host, table=without)):
            assert [row["after"] for row in topic.rows(2)][1] == {"id": 1, "name": "big"}
        ((log,),) = [row[:1] for row in source.ask("SHOW BINARY LOGS")[-1:]]
        words = ('{"id":2,"name":"big"} of shop.files', "60000", "max_body_bytes", f"{log}:")
        named(source, endpoint, insert.format(2, 60_000_000), *words)
        topic.rows(2)
        for words in ("files, at the snapshot at ", "files is too large, at the snapshot at "):
            again = Capture(settings(endpoint, source.host, name="copy"), wait=False)
            assert f'"name":"big"}} of shop.{words}' in str(again.failure())
            source.run("DELETE FROM shop.files WHERE id = 1")
    finally:
        source.run(f"SET GLOBAL max_allowed_packet = {usual}", "DROP TABLE shop.files", "FLUSH BINARY LOGS")


def test_a_message_of_an_outbox_that_is_refused_is_named(source: Source, endpoint: str) -> None:
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE shop")
        cursor.execute(CREATE_OUTBOX)
    insert = (
        "INSERT INTO shop.halfmq_cdc_outbox (topic, body, message_keys) VALUES ('rows', REPEAT('x', 5000000),"
        " '[\"k1\"]')"
    )
    outbox = {"table": [], "outbox": {"table": "shop.halfmq_cdc_outbox"}}
    named(source, endpoint, insert, "message for 'rows' of 5000000 bytes, keys 'k1'", "BODY_TOO_LARGE", **outbox)


def test_the_command_says_it_in_one_line(source: Source, tmp_path: Path) -> None:
    source.run("CREATE TABLE shop.loose (a INT)")
    status, out, err = CaptureProcess(file_of("127.0.0.1:1", source.host), tmp_path).end()
    assert (status, out) == (2, "")
    assert [line.partition(":")[0] for line in err.splitlines()] == ["halfmq"]
    assert "no primary key" in err
    assert "Traceback" not in err
