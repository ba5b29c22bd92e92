"""Messages of a message group keep their order when the database refuses one of them for a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faults.client import unique
from faults.mysql_proxy import SqlError
from faults.sites import Proxied
from producer_sdk import Message, Producer
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from support.databases import Kind

MARKED = r"(?s)^INSERT INTO message .*marked"
TOO_LONG = SqlError(1406, "22001", "Data too long")
FULL = SqlError(1114, "HY000", "The table is full")


def test_successors_wait_for_a_message_that_is_refused_in_passing(kind: Kind) -> None:
    database = create_database(server_url(kind))
    with Proxied(database, first_check=3600) as proxied, Producer(proxied.broker.endpoint) as producer:
        topic = unique("orders")
        proxied.client.create_topic(topic, 1)
        # The first makes the broker run the items one by one; the second then hits the marked one alone.
        broken = proxied.proxy.on_statement(MARKED, when="before", action=TOO_LONG, times=1)
        refused = proxied.proxy.on_statement(MARKED, when="before", action=FULL, times=1)
        listed = ["a0", "a1", "b0", "a2", "b1", "a3"]
        producer.send_many(
            Message(topic, body, message_group=body[0], tag="marked" if body == "a1" else None) for body in listed
        )
        stored = [message.body.decode() for queue in proxied.client.log(topic).values() for message in queue]
        assert (broken.fired, refused.fired) == (1, 1)
        assert [body for body in stored if body[0] == "a"] == ["a0", "a1", "a2", "a3"]
        assert [body for body in stored if body[0] == "b"] == ["b0", "b1"]
    drop_database(database)
