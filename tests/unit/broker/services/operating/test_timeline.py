"""The part of a message's timeline that its transaction tells."""

from __future__ import annotations

from dataclasses import replace

from broker.domain.message import LogMessage
from broker.domain.place import Recalled, Scheduled
from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource
from broker.ports.queries import TimelineKind
from broker.ports.transactions import CheckEntry, OpEntry, OperatorEntry, TransactionDetail, TransactionSummary
from broker.services.operating.timeline import transaction_events

OWN = b"\x01" * 16
SUMMARY = TransactionSummary(OWN, TransactionState.PREPARED, "shop", 2, 1, 100, None, None)
MESSAGE = LogMessage("orders", 0, 5, OWN, 1, b"x", None, [], {}, None, 100, 300)


def kinds(detail: TransactionDetail, position: int = 0, message: LogMessage | None = None) -> list[tuple[str, int]]:
    return [(event.kind.name, event.happened_at) for event in transaction_events(detail, position, message)]


def committed(*places: tuple[int, int], source: VerdictSource = VerdictSource.PRODUCER) -> TransactionDetail:
    summary = replace(SUMMARY, state=TransactionState.COMMITTED)
    return TransactionDetail(summary, op=OpEntry(TransactionState.COMMITTED, source, 200, None, places))


def test_everything_comes_in_its_order() -> None:
    detail = committed((7, 5))
    detail.checks = [
        CheckEntry(1, 110, "a", "c", 120, CheckVerdict.UNKNOWN, "not yet"),
        CheckEntry(2, 140, "a", "c", None, None, None),
    ]
    detail.operator_actions = [OperatorEntry("CHECK_AGAIN", "ada", "why not", 130)]
    detail.parked_at = 125
    assert kinds(detail, 0, MESSAGE) == [
        ("PREPARED", 100),
        ("CHECK_SENT", 110),
        ("CHECK_ANSWERED", 120),
        ("PARKED", 125),
        ("OPERATOR_ACTED", 130),
        ("CHECK_SENT", 140),
        ("COMMITTED", 200),
        ("RELEASED", 300),
    ]
    answered = transaction_events(detail, 0, MESSAGE)[2]
    assert (answered.number, answered.verdict, answered.reason) == (1, CheckVerdict.UNKNOWN, "not yet")


def test_a_message_that_waits_or_waited() -> None:
    assert kinds(committed((7, 5), Scheduled(290, 3)), 1)[-1] == ("SCHEDULED", 200)
    assert kinds(committed((7, 5), Recalled(250, 3, 290)), 1)[-2:] == [("SCHEDULED", 200), ("RECALLED", 250)]
    moved = replace(MESSAGE, properties={"halfmq.deliver-at": "290"})
    events = transaction_events(committed((7, 5)), 0, moved)
    assert [(event.kind, event.place) for event in events[-2:]] == [
        (TimelineKind.SCHEDULED, Scheduled(290)),
        (TimelineKind.RELEASED, (7, 5)),
    ]


def test_what_follows_comes_later_though_two_clocks_differ() -> None:
    detail = committed((7, 5))
    detail.summary.prepared_at = 203
    detail.checks = [CheckEntry(1, 201, "a", "c", 202, CheckVerdict.COMMIT, None)]
    told = [name for name, _ in kinds(detail, 0, replace(MESSAGE, stored_at=199))]
    assert told == ["PREPARED", "CHECK_SENT", "CHECK_ANSWERED", "COMMITTED", "RELEASED"]


def test_an_ordinary_message_was_never_prepared() -> None:
    assert kinds(committed((7, 5), source=VerdictSource.SEND), 0, MESSAGE) == [("COMMITTED", 200), ("RELEASED", 300)]


def test_no_verdict_and_a_rollback() -> None:
    assert kinds(TransactionDetail(SUMMARY)) == [("PREPARED", 100)]
    op = OpEntry(TransactionState.ROLLED_BACK, VerdictSource.OPERATOR, 200, "no", ())
    assert kinds(TransactionDetail(SUMMARY, op=op)) == [("PREPARED", 100), ("ROLLED_BACK", 200)]
