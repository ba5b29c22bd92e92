"""`halfmq admin`: topics, groups, lag, messages, dead letters and clients, as people and programs see them."""

from __future__ import annotations

import base64
import contextlib
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from client_core.ids import new_id
from consumer_sdk import Consumer
from halfmq.v1 import message_pb2, sink_pb2, sink_pb2_grpc
from producer_sdk import LocalTransactionState, TransactionListener, TransactionProducer
from support.admin_command import AdminCommand
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from client_core.message import HalfMessages

SECONDS = 30.0


class Unsure(TransactionListener):
    """Is there to be asked."""

    def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(f"sqlite:///{tmp_path_factory.mktemp('broker') / 'try.db'}", broker_id="one") as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> AdminCommand:
    return AdminCommand(broker.endpoint, tmp_path_factory.mktemp("contexts"))


def awaited(look: Callable[[], Any]) -> Any:
    """What was looked for, once it is there."""
    until = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def failed(broker: BrokerProcess, admin: AdminCommand, name: str, *bodies: str) -> None:
    """Messages of a topic that are dead letters of a group, both of this name."""
    admin.done("topic", "create", name, "--queues", 1)
    admin.done("group", "create", name, "--max-attempts", 1)
    for body in bodies:
        admin.done("message", "send", name, "--body", body, "--tag", "paid", "--property", "source=till")
    with Consumer(broker.endpoint, name, name) as consumer:
        for _ in bodies:
            next(consumer).nack(reason="the press is jammed")
        awaited(lambda: len(admin.found("dlq", "list", name)) == len(bodies))


def test_a_topic_is_created_changed_shown_and_deleted(admin: AdminCommand) -> None:
    (made,) = admin.found("topic", "create", "t-life", "--queues", 2, "--retention", "1d12h", "--priorities", 2)
    assert (made["queues"], made["retention"], made["priority_levels"]) == (2, 129_600.0, 2)
    admin("topic", "create", "t-life").refused(1, "ALREADY_EXISTS", "t-life")
    assert admin.found("topic", "create", "t-life", "--exist-ok") == [made]
    (changed,) = admin.found(
        "topic", "update", "t-life", "--queues", 3, "--retention-bytes", "1GiB", "--compression", "zstd"
    )
    assert (changed["queues"], changed["retention_bytes"], changed["compression"]) == (3, 1 << 30, "ZSTD")
    (shown,) = admin.found("topic", "show", "t-life")
    assert [queue["queue"] for queue in shown["queue_list"]] == [0, 1, 2, 3]
    page = admin.done("topic", "show", "t-life").output
    for part in ("topic t-life", "retention     1d12h", "bytes         1.0 GiB", "compression   zstd", "queues (4)"):
        assert part in page, part
    line = next(each for each in admin.done("topic", "list").lines if each.startswith("t-life "))
    assert line.split()[:4] == ["t-life", "3", "1d12h", "1.0"]
    admin("topic", "delete", "t-life").refused(2, "delete topic t-life", "--yes")
    assert admin.done("topic", "delete", "t-life", "--yes").lines == ["deleted topic t-life"]
    admin("topic", "show", "t-life").refused(1, "NOT_FOUND", "halfmq admin topic create t-life")
    admin.done("topic", "delete", "t-life", "--yes", "--missing-ok")


def test_a_group_is_created_changed_paused_moved_and_deleted(broker: BrokerProcess, admin: AdminCommand) -> None:
    admin.done("topic", "create", "g-life", "--queues", 1)
    (made,) = admin.found(
        "group", "create", "g-life", "--max-attempts", 3, "--retry-delay", "1s", "--retry-delay", "1m"
    )
    assert (made["max_attempts"], made["retry_delays"], made["mode"]) == (3, [1.0, 60.0], "CLUSTERING")
    (changed,) = admin.found("group", "update", "g-life", "--when-exhausted", "retry", "--keep-unread")
    assert (changed["when_exhausted"], changed["keep_unread"], changed["max_attempts"]) == ("RETRY", True, 3)
    for number in range(4):
        admin.done("message", "send", "g-life", "--body", f"{number}")
    with Consumer(broker.endpoint, "g-life", "g-life") as consumer:
        for _ in range(4):
            next(consumer).ack()
        awaited(lambda: admin.found("group", "show", "g-life")[0]["progress"][0]["lag"] == 0)
    admin("group", "seek", "g-life", "g-life", "2").refused(2, "to", "--queue")
    admin("group", "seek", "g-life", "g-life", "earliest").refused(2, "move group g-life", "--yes")
    (progress,) = admin.found("group", "seek", "g-life", "g-life", "2", "--queue", 0, "--yes")
    assert (progress["next_offset"], progress["lag"]) == (2, 2)
    (progress,) = admin.found("group", "seek", "g-life", "g-life", "1h", "--yes")
    assert progress["lag"] == 4
    (found,) = admin.found("lag", "--group", "g-life")
    assert (found["topic"], found["lag"]) == ("g-life", 4)
    assert found["lag_time"] > 0
    (paused,) = admin.found("group", "pause", "g-life", "--reason", "the press is jammed")
    assert paused["pause_reason"] == "the press is jammed"
    page = admin.done("group", "show", "g-life").output
    for part in (
        "group g-life",
        "when exhausted",
        "retry delays    1s, 1m",
        "the press is jammed",
        "progress (1 queue)",
    ):
        assert part in page, part
    assert admin.found("group", "resume", "g-life")[0]["paused_at"] is None
    (filtered,) = admin.found("group", "filter", "g-life", "g-life", "--sql", "amount > 10")
    assert filtered["filters"] == {"g-life": {"sql": "amount > 10"}}
    admin("group", "filter", "g-life", "g-life", "--sql", "amount >").refused(1, "INVALID_ARGUMENT")
    admin("group", "filter", "g-life", "g-life").refused(2, "--tags", "--all")
    assert admin.found("group", "filter", "g-life", "g-life", "--all")[0]["filters"] == {}
    assert "g-life" in [group["name"] for group in admin.found("group", "list")]
    admin.done("group", "delete", "g-life", "--yes")
    admin("group", "show", "g-life").refused(1, "NOT_FOUND", "g-life")


def test_lag_shows_the_group_first_whose_message_has_waited_longest(broker: BrokerProcess, admin: AdminCommand) -> None:
    for name in ("lag-late", "lag-early"):
        admin.done("topic", "create", name)
        admin.done("group", "create", name)
        with Consumer(broker.endpoint, name, name):
            awaited(lambda group=name: admin.found("group", "show", group)[0]["progress"])
    for name in ("lag-early", "lag-late", "lag-late"):
        admin.done("message", "send", name, "--body", "x")
    lags = [(each["group"], each["lag"]) for each in admin.found("lag", "--behind") if each["group"][:3] == "lag"]
    assert lags == [("lag-early", 1), ("lag-late", 2)]
    titles, *lines = admin.done("lag", "--topic", "lag-late").lines
    assert titles.split() == ["group", "topic", "queues", "lag", "behind", "in", "flight", "members", "paused"]
    assert lines[0].split()[:2] == ["lag-late", "lag-late"]


def test_a_message_is_sent_found_shown_and_followed_through_its_history(
    broker: BrokerProcess, admin: AdminCommand, tmp_path: Path
) -> None:
    admin.done("topic", "create", "m-life", "--queues", 1)
    admin.done("group", "create", "m-life")
    file = tmp_path / "order.json"
    file.write_text('{"order": 7}')
    sent = admin.done(
        "message",
        "send",
        "m-life",
        "--body",
        f"@{file}",
        "--key",
        "order-7",
        "--tag",
        "paid",
        "--property",
        "source=till",
    )
    identity = sent.output.partition(":")[0]
    assert sent.output == f"{identity}: topic m-life, queue 0, offset 0\n"
    (place,) = admin.found("message", "send", "m-life", "--body", "later", "--delay", "1h")
    assert place["queue"] is None
    assert place["scheduled_at"].endswith("Z")
    binary = admin.done("message", "send", "m-life", "--body", "-", "--json", given="é")
    (found,) = admin.found("message", "find", "m-life", "--key", "order-7")
    assert (found["message_id"], found["text"], found["tag"]) == (identity, '{"order": 7}', "paid")
    assert base64.b64decode(found["body"]) == b'{"order": 7}'
    assert found["properties"] == {"source": "till"}
    assert binary.objects[0]["offset"] == 1
    for options in (("--queue", 0, "--offset", 1), ("--sql", "source IS NULL")):
        (found,) = admin.found("message", "find", "m-life", *options)
        assert (found["offset"], found["text"]) == (1, "é")
    page = admin.done("message", "show", identity).output
    for part in (
        f"message {identity}: COMMITTED",
        "topic          m-life",
        "tag            paid",
        "source  till",
        '"order": 7',
        "body (12 B)",
    ):
        assert part in page, part
    assert "to be delivered at" in admin.done("message", "show", place["message_id"]).output
    with Consumer(broker.endpoint, "m-life", "m-life", client_id="press-1") as consumer:
        next(consumer).ack()
        awaited(lambda: "ACKED" in {event["type"] for event in admin.found("message", "timeline", identity)})
    timeline = admin.done("message", "timeline", identity).output
    for part in ("committed", "released", "at m-life/0/0", "delivered", "acked", "press-1"):
        assert part in timeline, part
    admin("message", "send", "m-life", "--body", "@/nowhere").refused(2, "--body", "/nowhere")
    admin("message", "send", "m-life", "--body", "x", "--property", "x").refused(2, "--property", "NAME=VALUE")
    admin("message", "send", "m-life", "--body", "x", "--priority", 99).refused(2, "priority")
    admin("message", "show", "nothing").refused(1, "INVALID_ARGUMENT")


def test_tail_reads_all_queues_with_a_filter_and_ends_where_it_is_told(admin: AdminCommand) -> None:
    admin.done("topic", "create", "tail", "--queues", 3)
    for number in range(6):
        admin.done("message", "send", "tail", "--body", f"{number}", "--tag", "even" if number % 2 == 0 else "odd")
    everything = admin.found("message", "tail", "tail", "--from", "earliest", "--no-follow")
    assert {message["text"] for message in everything} == set("012345")
    even = admin.done("message", "tail", "tail", "--from", "1h", "--no-follow", "--tags", "even")
    assert sorted(line.split()[-1] for line in even.lines) == ["0", "2", "4"]
    assert len(admin.done("message", "tail", "tail", "--from", "earliest", "--limit", 2).lines) == 2
    assert admin.done("message", "tail", "tail", "--no-follow").lines == []
    hexadecimal = admin.done("message", "tail", "tail", "--from", "earliest", "--limit", 1, "--body", "hex")
    assert hexadecimal.lines[0].split()[-1] in {f"{ord(digit):x}" for digit in "012345"}
    admin("message", "tail", "nowhere").refused(1, "NOT_FOUND")


def test_dead_letters_are_listed_peeked_redriven_and_purged(broker: BrokerProcess, admin: AdminCommand) -> None:
    failed(broker, admin, "dead", "one", '{"two": 2}', "three")
    letters = admin.found("dlq", "list", "dead")
    assert [letter["message"]["text"] for letter in letters] == ["one", '{"two": 2}', "three"]
    assert {(letter["reason"], letter["attempts"], letter["origin"]["topic"]) for letter in letters} == {
        ("the press is jammed", 1, "dead")
    }
    titles, first, *_ = admin.done("dlq", "list", "dead").lines
    assert titles.split()[:3] == ["offset", "since", "from"]
    assert "dead/0/0" in first
    assert "the press is jammed" in first
    page = admin.done("dlq", "peek", "dead", "--offset", 1).output
    for part in ("dead letter 1 of group dead", "the press is jammed", '"two": 2', "source"):
        assert part in page, part
    missing = admin("dlq", "peek", "dead", "--offset", 99)
    assert missing.status == 1
    assert "offset 99" in missing.errors
    admin("dlq", "redrive", "dead").refused(2, "--all")
    (progress,) = admin.found("dlq", "redrive", "dead", "--offset", 1)
    assert (progress["redriven"], progress["done"]) == (1, True)
    again = admin.done("dlq", "redrive", "dead", "--all")
    assert again.output == "redriven 2, 1 left as they are (redriven before, or past retention)\n"
    assert all(letter["redriven_at"] for letter in admin.found("dlq", "list", "dead"))
    admin("dlq", "purge", "dead").refused(2, "--all")
    dry = admin.done("dlq", "purge", "dead", "--before-offset", 2, "--dry-run")
    assert dry.output == "2 dead letters of group dead to delete\n"
    admin("dlq", "purge", "dead", "--before-offset", 2).refused(2, "delete 2 dead letters of group dead", "--yes")
    (purged,) = admin.found("dlq", "purge", "dead", "--before-offset", 2, "--yes")
    assert purged["deleted"] == 2
    assert [letter["message"]["offset"] for letter in admin.found("dlq", "list", "dead")] == [2]
    assert admin.done("dlq", "purge", "dead", "--all", "--yes").output == "deleted 1 dead letter of group dead\n"
    assert "no such dead letters" in admin.done("dlq", "list", "dead").errors


def test_connected_clients_are_shown_with_what_they_hold(broker: BrokerProcess, admin: AdminCommand) -> None:
    admin.done("topic", "create", "who")
    admin.done("group", "create", "who")
    admin.done("message", "send", "who", "--body", "x")
    with contextlib.ExitStack() as open_clients:
        open_clients.enter_context(TransactionProducer(broker.endpoint, "who-shop", Unsure(), client_id="till-1"))
        consumer = open_clients.enter_context(Consumer(broker.endpoint, "who", "who", client_id="press-1"))
        held = next(consumer)
        (producer,) = awaited(lambda: admin.found("clients", "--producers", "--group", "who-shop"))
        assert (producer["client_id"], producer["kind"], producer["broker_id"]) == ("till-1", "PRODUCER", "one")
        assert producer["address"].startswith("127.0.0.1:")
        (holder,) = awaited(lambda: admin.found("clients", "--group", "who", "--holding"))
        assert (holder["client_id"], holder["held"], holder["groups"], holder["topics"]) == (
            "press-1",
            1,
            ["who"],
            ["who"],
        )
        shown = admin.done("clients", "--consumers").output
        for part in ("consumer", "press-1", "127.0.0.1:", "halfmq-python/", "holds"):
            assert part in shown, part
        (found,) = awaited(lambda: [each for each in admin.found("brokers") if each["consumers"]])
        assert (found["broker_id"], found["alive"], found["endpoint"]) == ("one", True, broker.endpoint)
        held.ack()
    admin("clients", "--producers", "--consumers").refused(2, "--producers")


def test_the_overview_has_what_may_need_somebody(broker: BrokerProcess, admin: AdminCommand) -> None:
    failed(broker, admin, "overview", "x")
    admin.done("message", "send", "overview", "--body", "x", "--half", "overview-shop")
    page = admin.done("status").output
    for part in ("in all", "SQLite", "brokers (1)", "alive", "transactions in doubt", "overview-shop", "worst lags"):
        assert part in page, part
    (found,) = admin.found("status")
    pending = {each["producer_group"]: each["prepared"] for each in found["overview"]["pending"]}
    assert pending["overview-shop"] == 1
    assert found["dead_letters"]["overview"] == 1
    assert found["brokers"][0]["broker_id"] == "one"


def test_a_transaction_of_a_sink_is_its_jobs_business(broker: BrokerProcess, admin: AdminCommand) -> None:
    admin.done("topic", "create", "sunk")
    identity = new_id()
    with grpc.insecure_channel(broker.endpoint) as channel:
        sink_pb2_grpc.SinkServiceStub(channel).PrepareEpoch(
            sink_pb2.PrepareEpochRequest(
                epoch=sink_pb2.Epoch(sink="s", query_id="q"),
                attempt_id=new_id(),
                transaction_id=identity,
                messages=[message_pb2.Message(topic="sunk", body=b"x")],
            )
        )
    page = admin.done("tx", "show", identity).output
    assert "commits or aborts the epoch" in page
    assert "tx commit" not in page
    assert "no transaction matches" in admin.done("tx", "rollback", "--topic", "sunk", "--reason", "x").errors
