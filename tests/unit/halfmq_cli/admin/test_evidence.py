"""The page about a transaction: what it says about why there is no verdict, and what can be done."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from client_core.message import LogPosition, Message
from client_core.results import CheckInfo, TransactionInfo, VerdictInfo
from client_core.states import LocalTransactionState, TransactionState, VerdictSource
from halfmq_cli.admin.evidence import Evidence, advice, evidence_page

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"
PENDING = TransactionInfo(
    ID,
    TransactionState.PREPARED,
    "shop",
    (Message("orders", b"x"),),
    0,
    NOON - timedelta(minutes=5),
    NOON + timedelta(seconds=9),
    None,
    (),
    None,
)


def check(number: int, answer: LocalTransactionState | None, reason: str = "") -> CheckInfo:
    sent = NOON - timedelta(minutes=4 - number)
    answered = sent + timedelta(milliseconds=30) if answer is not None else None
    return CheckInfo(number, sent, "broker-1", "till-1", answered, answer, reason)


def page(evidence: Evidence) -> str:
    return "\n".join(evidence_page(evidence, now=NOON).text())


def test_a_pending_one_tells_when_it_is_checked_next_and_by_whom() -> None:
    shown = page(Evidence(PENDING, ["till-1 at 10.1.2.3:4 (broker one)"]))
    assert "next check      2026-01-31T12:00:09Z, in 9s" in shown
    assert "producers now   till-1 at 10.1.2.3:4 (broker one)" in shown
    assert "2026-01-31T11:55:00Z, 5m ago" in shown
    assert "none was sent" in shown


def test_without_a_producer_the_remedy_is_to_start_one() -> None:
    assert advice(Evidence(PENDING, []))[0] == (
        "No producer of group shop is connected: start one, and it is asked at once."
    )
    parked = replace(PENDING, state=TransactionState.PARKED)
    assert advice(Evidence(parked, []))[:2] == [
        "All checks are used up: it waits for an operator, however long that takes.",
        "No producer of group shop is connected: start one, then check again.",
    ]
    assert "No producer" not in "\n".join(advice(Evidence(PENDING, None)))


def test_one_of_a_sink_is_its_jobs_business() -> None:
    lines = advice(Evidence(replace(PENDING, producer_group="%SINK%", next_check_at=None), None))
    assert "commits or aborts the epoch as a whole" in lines[1]
    assert not any("halfmq admin" in line for line in lines)


def test_what_checks_were_answered_is_summed_up() -> None:
    checks = (check(1, None), check(2, LocalTransactionState.UNKNOWN, "the row is locked"))
    lines = advice(Evidence(replace(PENDING, checks=checks, check_count=2), None))
    assert "1 of 2 checks got no answer: look at the log of the producers." in lines
    assert "1 of 2 checks were answered UNKNOWN, the last one: the row is locked." in lines
    shown = page(Evidence(replace(PENDING, checks=checks)))
    assert "2026-01-31T11:58:00.000Z  broker-1   till-1       UNKNOWN   30ms  the row is locked" in shown


def test_a_decided_one_tells_where_its_messages_went() -> None:
    places = (
        LogPosition("orders", 1, 7, ID),
        LogPosition("orders", None, None, f"{ID}.1", scheduled_at=NOON + timedelta(hours=1)),
        LogPosition("orders", None, None, f"{ID}.2", recalled_at=NOON),
        LogPosition("", None, None, f"{ID}.3"),
    )
    verdict = VerdictInfo(TransactionState.COMMITTED, VerdictSource.CHECK, NOON - timedelta(minutes=1), "paid", places)
    decided = replace(PENDING, state=TransactionState.COMMITTED, messages=(), verdict=verdict, next_check_at=None)
    shown = page(Evidence(decided, None, {ID: b'{"a": 1}'}))
    for part in (
        "verdict         COMMITTED by check",
        "reason          paid",
        f"{ID} in topic orders, queue 1, offset 7",
        '"a": 1',
        f"{ID}.1 for topic orders, to be delivered at 2026-01-31T13:00:00.000Z",
        f"{ID}.2 for topic orders, recalled at 2026-01-31T12:00:00.000Z",
        f"{ID}.3 at a place that is not known any more",
        f"halfmq admin message timeline {ID}",
    ):
        assert part in shown, part
    assert "tx commit" not in shown


def test_many_messages_are_cut_unless_all_are_wanted() -> None:
    many = replace(PENDING, messages=tuple(Message("orders", b"x") for _ in range(25)))
    assert "... 5 more (--full shows all)" in page(Evidence(many))
    assert f"{ID}.24 to topic orders" in "\n".join(evidence_page(Evidence(many), full=True, now=NOON).text())


def test_what_clients_sent_cannot_forge_a_line() -> None:
    forged = replace(PENDING, messages=(Message("orders", b"x\n\x1b[2Kwhat can be done", properties={"a": "b\nc"}),))
    shown = page(Evidence(forged))
    assert "\x1b" not in shown
    assert "a: b?c" in shown
