"""`halfmq admin tx`: transactions in doubt are found, understood from one screen, and decided, one or many."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from producer_sdk import LocalTransactionState, Message, TransactionListener, TransactionProducer
from support.admin_command import AdminCommand
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client_core.message import HalfMessages

TIMES = {"first_check": 0.3, "check_interval": 0.3, "max_checks": 2}
MISSING = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"


class Undecided(TransactionListener):
    """Cannot tell, and says why."""

    def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        msg = "the payment is open"
        raise TimeoutError(msg)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(f"sqlite:///{tmp_path_factory.mktemp('broker') / 'try.db'}", **TIMES) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> AdminCommand:
    made = AdminCommand(broker.endpoint, tmp_path_factory.mktemp("contexts"))
    made.done("topic", "create", "orders", "--queues", 2)
    made.done("topic", "create", "refunds")
    return made


def prepared(admin: AdminCommand, group: str, body: str = "an order", topic: str = "orders", **options: str) -> str:
    """A half message that nobody decides; the id of its transaction."""
    more = [part for name, value in options.items() for part in (f"--{name}", value)]
    (result,) = admin.found("message", "send", topic, "--body", body, "--half", group, *more)
    assert result["state"] == "PREPARED"
    return str(result["transaction_id"])


def parked(broker: BrokerProcess, admin: AdminCommand, group: str, messages: list[Message]) -> str:
    """A transaction whose producers answered UNKNOWN until all checks were used up."""
    with TransactionProducer(broker.endpoint, group, Undecided(), client_id="till-1") as producer:
        transaction = producer.prepare(messages).transaction_id
        until = time.monotonic() + 30
        while not admin.found("tx", "list", "--parked", "--group", group):
            assert time.monotonic() < until
            time.sleep(0.1)
    # The broker hears of it a little later.
    while admin.found("clients", "--group", group):
        assert time.monotonic() < until + 30
        time.sleep(0.1)
    return transaction


def test_pending_ones_are_listed_and_filtered(admin: AdminCommand) -> None:
    one, other = prepared(admin, "g-list"), prepared(admin, "g-list", topic="refunds")
    assert {each["transaction_id"] for each in admin.found("tx", "list", "--pending", "--group", "g-list")} == {
        one,
        other,
    }
    (found,) = admin.found("tx", "list", "--group", "g-list", "--topic", "refunds")
    assert found["transaction_id"] == other
    assert found["state"] == "PREPARED"
    assert found["messages"] == 1
    assert found["prepared_at"].endswith("Z")
    assert admin.found("tx", "list", "--group", "g-list", "--parked") == []
    assert admin.found("tx", "list", "--group", "g-list", "--older-than", "1h") == []
    shown = admin.done("tx", "list", "--group", "g-list")
    assert shown.lines[0].split() == [
        "transaction",
        "state",
        "group",
        "messages",
        "checks",
        "age",
        "next",
        "check",
        "in",
        "parked",
        "for",
    ]
    assert [line.split()[0] for line in shown.lines[1:]] == [one, other]


def test_a_limit_says_that_there_are_more(admin: AdminCommand) -> None:
    for _ in range(3):
        prepared(admin, "g-limit")
    shown = admin.done("tx", "list", "--group", "g-limit", "--limit", 2)
    assert len(shown.lines) == 3
    assert "there are more; --limit 0 shows all" in shown.errors
    assert len(admin.found("tx", "list", "--group", "g-limit", "--limit", 0)) == 3


def test_one_screen_has_the_whole_evidence_of_a_parked_one(broker: BrokerProcess, admin: AdminCommand) -> None:
    messages = [
        Message("orders", '{"order": 7}', tag="paid", keys=("order-7",), properties={"source": "till"}),
        Message("refunds", b"\x00\x01\xff"),
    ]
    transaction = parked(broker, admin, "g-evidence", messages)
    shown = admin.done("tx", "show", transaction).output
    for part in (
        f"transaction {transaction}: PARKED",
        "producer group  g-evidence",
        "checks sent     2",
        "producers now   none: no check can be sent",
        f"{transaction} to topic orders, 12 B, tag paid, keys order-7",
        "source: till",
        '"order": 7',
        f"{transaction}.1 to topic refunds, 3 B",
        "000000  00 01 ff",
        "till-1",
        "UNKNOWN",
        "the payment is open",
        "2 of 2 checks were answered UNKNOWN, the last one: TimeoutError('the payment is open').",
        "No producer of group g-evidence is connected",
        f"halfmq admin tx commit {transaction} --reason '...'",
        f"halfmq admin tx rollback {transaction} --reason '...'",
        f"halfmq admin tx check {transaction} --reason '...'",
    ):
        assert part in shown, part
    (found,) = admin.found("tx", "show", transaction)
    assert found["state"] == "PARKED"
    assert [check["answer"] for check in found["checks"]] == ["UNKNOWN", "UNKNOWN"]
    assert found["message_ids"] == [transaction, f"{transaction}.1"]
    assert [message["text"] for message in found["messages"]] == ['{"order": 7}', None]
    assert found["producers"] == []


def test_commands_to_copy_are_for_the_same_brokers(broker: BrokerProcess, admin: AdminCommand) -> None:
    transaction = prepared(admin, "g-copy")
    shown = admin.done("tx", "show", transaction, "--endpoint", broker.endpoint).output
    assert f"tx commit {transaction} --reason '...' --endpoint {broker.endpoint}" in shown


def test_a_decision_is_recorded_and_final(admin: AdminCommand) -> None:
    transaction = prepared(admin, "g-decide", body="two apples")
    admin("tx", "commit", transaction, "--yes").refused(2, "--reason")
    asked = admin("tx", "commit", transaction, "--reason", "it was paid")
    assert asked.status == 2
    assert "--yes answers" in asked.errors
    (result,) = admin.found("tx", "commit", transaction, "--reason", "it was paid", "--yes")
    assert result["state"] == "COMMITTED"
    shown = admin.done("tx", "show", transaction).output
    for part in ("COMMITTED by operator", "it was paid", "messages released (1)", "two apples", "message timeline"):
        assert part in shown, part
    assert admin.done("tx", "commit", transaction, "--reason", "again", "--yes").lines == [f"{transaction}: COMMITTED"]
    admin("tx", "rollback", transaction, "--reason", "no", "--yes").refused(1, transaction, "COMMITTED")


def test_several_are_decided_at_once_and_those_that_are_not_known_are_named(admin: AdminCommand) -> None:
    one, other = prepared(admin, "g-several"), prepared(admin, "g-several")
    ran = admin("tx", "rollback", one, MISSING, other, "--reason", "a test", "--yes")
    assert ran.status == 1
    assert ran.lines == [f"{one}: ROLLED_BACK", f"{other}: ROLLED_BACK"]
    assert MISSING in ran.errors
    admin("tx", "show", MISSING).refused(1, "NOT_FOUND")


def test_a_filter_runs_dry_first_and_then_resolves_exactly_those(admin: AdminCommand) -> None:
    ids = {prepared(admin, "g-many") for _ in range(3)}
    dry = admin.done("tx", "rollback", "--group", "g-many", "--dry-run")
    assert dry.lines[0].endswith(": 3, for example")
    assert {line.split()[0] for line in dry.lines[2:]} == ids
    assert len(admin.found("tx", "list", "--group", "g-many")) == 3
    asked = admin("tx", "rollback", "--group", "g-many", "--reason", "a test")
    assert asked.status == 2
    assert len(admin.found("tx", "list", "--group", "g-many")) == 3
    (progress,) = admin.found("tx", "rollback", "--group", "g-many", "--reason", "a test", "--yes")
    assert (progress["matched"], progress["resolved"], progress["left"]) == (3, 3, 0)
    assert admin.found("tx", "list", "--group", "g-many") == []
    decided = admin.found("tx", "list", "--decided", "--group", "g-many", "--source", "operator", "--since", "1h")
    assert {each["transaction_id"] for each in decided} == ids
    assert {(each["state"], each["source"], each["reason"]) for each in decided} == {
        ("ROLLED_BACK", "OPERATOR", "a test")
    }
    assert "no transaction matches" in admin.done("tx", "rollback", "--group", "g-many", "--reason", "x").errors


def test_an_age_counts_to_the_time_of_the_dry_run(admin: AdminCommand) -> None:
    prepared(admin, "g-age")
    assert (
        "no transaction matches"
        in admin.done("tx", "check", "--group", "g-age", "--older-than", "1h", "--reason", "x", "--yes").errors
    )
    (progress,) = admin.found("tx", "check", "--group", "g-age", "--older-than", "1us", "--reason", "x", "--yes")
    assert progress["resolved"] == 1


def test_a_parked_one_is_checked_again(broker: BrokerProcess, admin: AdminCommand) -> None:
    transaction = parked(broker, admin, "g-again", [Message("orders", "x")])
    assert admin.done("tx", "check", transaction, "--reason", "the database is back").lines == [
        f"{transaction}: PREPARED"
    ]
    (found,) = admin.found("tx", "show", transaction)
    assert [each["action"] for each in found["operator_actions"]] == ["CHECK_AGAIN"]
    assert found["operator_actions"][0]["reason"] == "the database is back"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tx", "list", "--decided", "--parked"), ("--parked", "without a verdict")),
        (("tx", "list", "--since", "1h"), ("--since", "--decided")),
        (("tx", "list", "--older-than", "soon"), ("--older-than", "such as 30s")),
        (("tx", "list", "--decided", "--source", "nobody"), ("--source", "producer or check")),
        (("tx", "commit", "--reason", "x"), ("ids", "--parked")),
        (("tx", "commit", MISSING, "--parked", "--reason", "x"), ("ids", "exclude")),
        (("tx", "show", MISSING, "--body", "xml"), ("--body", "auto, text, json or hex")),
    ],
    ids=lambda part: " ".join(part[:4]),
)
def test_wrong_usage_is_told_in_a_line(admin: AdminCommand, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    admin(*arguments).refused(2, *words)
