"""All that is known of a transaction, on one page: a person in doubt decides from it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client_core.results import CheckInfo, OperatorAction, TransactionInfo, message_ids
from client_core.states import LocalTransactionState, TransactionState
from halfmq_cli.admin.output import Column, Page
from halfmq_cli.admin.plain import BodyForm, age, body_lines, precise, short, size, time_of, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.message import LogPosition, Message

SINKS = "%SINK%"
"""The producer group of half messages that sinks stored."""
PREVIEW = 400
_SHOWN = 20


@dataclass(frozen=True)
class Evidence:
    """What is known of a transaction.

    Attributes:
        transaction: What the broker that was asked tells.
        producers: Connected producers of its group, while it has no verdict; None where that is not known.
        released_bodies: By message id, bodies of messages that were released.
        command: Makes a command to copy, from what follows ``halfmq admin``.
    """

    transaction: TransactionInfo
    producers: list[str] | None = None
    released_bodies: dict[str, bytes] = field(default_factory=dict)
    command: Callable[[str], str] = "halfmq admin {}".format


CHECKS: list[Column[CheckInfo]] = [
    Column("check", lambda check: str(check.check_number), right=True),
    Column("sent", lambda check: precise(check.sent_at)),
    Column("by broker", lambda check: check.broker_id),
    Column("to producer", lambda check: check.client_id or "-"),
    Column("answer", lambda check: check.answer.name if check.answer is not None else "none"),
    Column(
        "after",
        lambda check: short(check.answered_at - check.sent_at) if check.answered_at and check.sent_at else "-",
        right=True,
    ),
    Column("reason", lambda check: check.reason or "-"),
]
ACTIONS: list[Column[OperatorAction]] = [
    Column("when", lambda action: precise(action.acted_at)),
    Column("action", lambda action: action.action),
    Column("operator", lambda action: action.operator or "-"),
    Column("reason", lambda action: action.reason or "-"),
]


def evidence_page(
    evidence: Evidence, *, form: BodyForm = "auto", full: bool = False, now: datetime | None = None
) -> Page:
    """The page.

    Args:
        evidence: What is known.
        form: How bodies are shown.
        full: Whether they are shown whole.
        now: The time that ages are counted to; None: now.
    """
    found, now = evidence.transaction, now or datetime.now(UTC)
    page = Page()
    page.title(f"transaction {found.transaction_id}: {found.state.name}")
    page.fields(_summary(evidence, now))
    _messages(page, evidence, form, full)
    page.title(f"checks ({len(found.checks)})")
    if found.checks:
        page.table(CHECKS, found.checks)
    else:
        page.lines(["none was sent"])
    if found.operator_actions:
        page.title(f"operators ({len(found.operator_actions)})")
        page.table(ACTIONS, found.operator_actions)
    page.title("what can be done")
    page.lines(advice(evidence))
    return page


def evidence_record(evidence: Evidence) -> dict[str, object]:
    """The same for programs: the transaction's attributes, its messages' ids, and the producers."""
    found = evidence.transaction
    return {
        **{each.name: getattr(found, each.name) for each in fields(found)},
        "message_ids": message_ids(found.transaction_id, len(found.messages)),
        "producers": evidence.producers,
    }


def _summary(evidence: Evidence, now: datetime) -> list[tuple[str, str]]:
    found = evidence.transaction
    pairs = [
        ("producer group", found.producer_group or "-"),
        ("prepared", f"{time_of(found.prepared_at)}, {age(found.prepared_at, now)} ago" if found.prepared_at else "-"),
        ("checks sent", str(found.check_count)),
    ]
    if found.next_check_at is not None:
        pairs.append(("next check", f"{time_of(found.next_check_at)}, {_coming(found.next_check_at, now)}"))
    if found.parked_at is not None:
        pairs.append(("parked", f"{time_of(found.parked_at)}, {age(found.parked_at, now)} ago"))
    if evidence.producers is not None:
        connected = "; ".join(evidence.producers[:_SHOWN]) or "none: no check can be sent"
        pairs.append(("producers now", connected))
    if found.verdict is not None:
        decided = found.verdict
        pairs += [
            ("verdict", f"{decided.state.name} by {decided.source.name.lower()}"),
            ("decided", f"{precise(decided.decided_at)}, {age(decided.decided_at, now)} ago"),
            ("reason", decided.reason or "-"),
        ]
    return pairs


def _coming(moment: datetime, now: datetime) -> str:
    left = until(moment, now)
    return "due now" if left == "due" else f"in {left}"


def _messages(page: Page, evidence: Evidence, form: BodyForm, full: bool) -> None:
    found = evidence.transaction
    if found.verdict is not None:
        released = found.verdict.released
        page.title(f"messages released ({len(released)})")
        for place in released:
            page.lines([place_text(place)])
            if place.message_id in evidence.released_bodies:
                body = evidence.released_bodies[place.message_id]
                page.lines(f"    {line}" for line in body_lines(body, form, None if full else PREVIEW))
        if not released:
            page.lines(["none: they were dropped"])
        return
    page.title(f"half messages ({len(found.messages)})")
    shown = found.messages if full else found.messages[:_SHOWN]
    for message_id, message in zip(message_ids(found.transaction_id, len(found.messages)), shown, strict=False):
        _half(page, message_id, message, form, full)
    if len(shown) < len(found.messages):
        page.lines([f"... {len(found.messages) - len(shown)} more (--full shows all)"])


def _half(page: Page, message_id: str, message: Message, form: BodyForm, full: bool) -> None:
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    labels = [
        ("tag", message.tag),
        ("keys", ", ".join(message.keys)),
        ("group", message.message_group),
        ("dedup key", message.dedup_key),
        ("priority", str(message.priority or "")),
        ("deliver at", precise(message.deliver_at) if message.deliver_at else ""),
        (
            "delay",
            short(message.delay) if message.delay is not None and not isinstance(message.delay, int | float) else "",
        ),
    ]
    told = "".join(f", {name} {value}" for name, value in labels if value)
    page.lines([f"{message_id} to topic {message.topic}, {size(len(body))}{told}"])
    page.lines(f"    {name}: {value}" for name, value in sorted(message.properties.items()))
    page.lines(f"    {line}" for line in body_lines(body, form, None if full else PREVIEW))


def place_text(place: LogPosition) -> str:
    """Where a message went."""
    if place.recalled_at is not None:
        return f"{place.message_id} for topic {place.topic}, recalled at {precise(place.recalled_at)}"
    if place.scheduled_at is not None:
        return f"{place.message_id} for topic {place.topic}, to be delivered at {precise(place.scheduled_at)}"
    if place.queue is None:
        return f"{place.message_id} at a place that is not known any more"
    return f"{place.message_id} in topic {place.topic}, queue {place.queue}, offset {place.offset}"


def advice(evidence: Evidence) -> list[str]:
    """What an operator can do, as sentences and as commands to copy."""
    found = evidence.transaction
    if found.verdict is not None:
        lines = ["It is decided, which cannot be changed."]
        if found.verdict.released:
            lines += [
                "Where its first message went, and who got it:",
                f"  {evidence.command(f'message timeline {found.verdict.released[0].message_id}')}",
            ]
        return lines
    if found.producer_group == SINKS:
        return [
            "It belongs to an epoch of a sink: no producer is asked, and no operator decides it.",
            "The job that stored it (on Spark, halfmq cdc, halfmq bridge) commits or aborts the epoch as a whole:",
            "start that job again, and it goes on from there.",
        ]

    def do(verb: str) -> str:
        return "  " + evidence.command(f"tx {verb} {found.transaction_id} --reason '...'")

    lines = [*_findings(evidence)]
    lines += [
        "Find out in the database of the producer whether the local transaction committed: its key is the id above.",
        "It committed: release the messages.",
        do("commit"),
        "It did not happen, and never will: drop them.",
        do("rollback"),
        "The producers can tell by now: ask them again, with a fresh number of checks.",
        do("check"),
    ]
    return lines


def _findings(evidence: Evidence) -> list[str]:
    """What the evidence says about why there is no verdict."""
    found, lines = evidence.transaction, []
    if found.state is TransactionState.PARKED:
        lines.append("All checks are used up: it waits for an operator, however long that takes.")
    if evidence.producers == []:
        lines.append(
            f"No producer of group {found.producer_group} is connected: start one"
            + (", and it is asked at once." if found.state is TransactionState.PREPARED else ", then check again.")
        )
    silent = sum(check.answered_at is None for check in found.checks)
    unknown = [check for check in found.checks if check.answer is LocalTransactionState.UNKNOWN]
    if silent:
        lines.append(f"{silent} of {len(found.checks)} checks got no answer: look at the log of the producers.")
    if unknown:
        why = f": {unknown[-1].reason}" if unknown[-1].reason else ", without a reason"
        lines.append(f"{len(unknown)} of {len(found.checks)} checks were answered UNKNOWN, the last one{why}.")
    return lines
