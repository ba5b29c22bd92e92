"""The outbox: rows that transactions insert become the messages that they are."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from connect.cdc.sources import Capture, Topic, settings
from halfmq_connect.cdc.errors import CannotFollow
from halfmq_connect.cdc.outbox import CREATE_OUTBOX

if TYPE_CHECKING:
    from connect.cdc.sources import Source

OUTBOX = {"table": [], "outbox": {"table": "shop.halfmq_cdc_outbox"}}


def make(source: Source) -> None:
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE shop")
        cursor.execute(CREATE_OUTBOX)


def test_rows_are_messages_and_may_be_deleted_at_once(source: Source, endpoint: str, topic: Topic) -> None:
    make(source)
    source.run("INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', 'before the start')")
    with (
        Capture(settings(endpoint, source.host, **OUTBOX)),
        closing(Topic(endpoint, "other")) as other,
        source.connect(autocommit=False) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "INSERT INTO shop.halfmq_cdc_outbox (topic, body, tag, message_keys, message_group, properties) VALUES"
            " ('rows', x'00FF', 'paid', '[\"order-7\"]', 'customer-1', '{\"amount\": \"12\"}'), ('other', 'text', NULL,"
            " NULL, NULL, NULL)"
        )
        cursor.execute("DELETE FROM shop.halfmq_cdc_outbox")
        connection.commit()
        cursor.execute("INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', 'rolled back')")
        connection.rollback()
        cursor.execute("INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', 'last')")
        connection.commit()
        found = {message.body: message for message in topic.until(lambda found: len(found) >= 3)}
        (text,) = other.until(bool)
    assert set(found) == {b"before the start", b"\0\xff", b"last"}
    full = found[b"\0\xff"]
    assert (full.tag, full.keys, full.message_group) == ("paid", ("order-7",), "customer-1")
    assert full.properties["amount"] == "12"
    assert text.body == b"text"
    assert text.transaction_id == full.transaction_id


def test_it_may_match_a_table_section_too(source: Source, endpoint: str, topic: Topic) -> None:
    make(source)
    source.run("INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', 'before the start')")
    table = [{"match": "shop.*", "topic": "rows", "exclude_columns": ["body"]}]
    with Capture(settings(endpoint, source.host, **{**OUTBOX, "table": table})):
        source.run("INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', 'after it')")
        found = topic.until(lambda found: len(found) >= 2)
    assert [message.body for message in found] == [b"before the start", b"after it"]


def test_properties_count_as_much_as_bodies(source: Source, endpoint: str) -> None:
    """96 MiB of them that wait, in transactions of 1.6 MiB; their bodies of a byte once made them one epoch."""
    make(source)
    insert = "INSERT INTO shop.halfmq_cdc_outbox (topic, body, properties) VALUES "
    rows = ", ".join(["('other', 'b', JSON_OBJECT('p', REPEAT('x', 16000)))"] * 100)
    Capture(settings(endpoint, source.host, **OUTBOX)).stop()
    source.run(*[insert + rows] * 60)
    with Capture(settings(endpoint, source.host, **OUTBOX)), closing(Topic(endpoint, "other")) as other:
        assert len(other.until(lambda found: len(found) >= 6000)) == 6000


def test_a_snapshot_of_large_rows_goes_in_requests_that_fit(source: Source, endpoint: str) -> None:
    make(source)
    insert = "INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES "
    source.run(*[insert + ", ".join(["('other', REPEAT('x', 1000000))"] * 10)] * 4)
    with Capture(settings(endpoint, source.host, **OUTBOX)), closing(Topic(endpoint, "other")) as other:
        assert len(other.until(lambda found: len(found) >= 40)) == 40


def test_a_row_that_is_no_message_stops_it_with_nothing_skipped(source: Source, endpoint: str, topic: Topic) -> None:
    make(source)
    running = Capture(settings(endpoint, source.host, **OUTBOX))
    source.run(
        "INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', 'good')",
        "INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', '')",
        "INSERT INTO shop.halfmq_cdc_outbox (topic, body) VALUES ('rows', 'after it')",
    )
    error = running.failure()
    assert isinstance(error, CannotFollow)
    assert "body" in str(error)
    assert [message.body for message in topic.read()] == [b"good"]
