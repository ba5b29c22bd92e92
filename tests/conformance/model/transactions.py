"""Rules of transactions: half messages, verdicts, checks, and ordinary messages."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

from broker.domain.ids import uuid7
from broker.domain.message import Message
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import AlreadyExists, NotFound, Refused, VerdictConflict
from broker.ports.log import SendWork
from broker.ports.transactions import Half, PrepareWork, TransactionOutcome, VerdictWork
from conformance.model.expected import COMMITTED, PARKED, PREPARED, ROLLED_BACK, Expected, Transaction, Written
from conformance.rig import Rig

SECOND = 1_000_000
SHAPES = [(None, None), (0, None), (1, None), (0, "a"), (0, "b"), (1, "c")]
"""Queue and message group of a message; None: any, none."""
STEPS = (0, 1, SECOND, 6 * SECOND, 15 * SECOND, 30 * SECOND, 31 * SECOND, 3600 * SECOND)


class TransactionRules(RuleBasedStateMachine):
    """Drives the transactions of a store next to the model."""

    rig: ClassVar[Rig]
    transactions = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self.model = Expected()
        self.count = 0

    @initialize(target=transactions, shapes=st.lists(st.sampled_from(SHAPES), max_size=8))
    def begin(self, shapes: list[tuple[int | None, str | None]]) -> Any:
        """With some messages in the log: most examples are too short to be about them otherwise."""
        self.rig.begin()
        return self.send(0, shapes) if shapes else multiple()

    @property
    def now(self) -> int:
        return self.rig.clock.time

    def call(self, broker: int, name: str, *rest: Any, **named: Any) -> Any:
        return self.rig.run(getattr(self.rig.stores[broker], name)(*rest, **named))

    def half(self, queue_no: int | None, message_group: str | None, body: bytes) -> Half:
        return Half(self.rig.topic.topic_id, queue_no, Message("orders", body, message_group=message_group))

    def prepare_work(self, transaction: Transaction, first: int = 0) -> PrepareWork:
        halves = [self.half(*each) for each in transaction.halves[first:]]
        return PrepareWork(transaction.transaction_id, self.rig.producer, halves, first)

    # --- time ---------------------------------------------------------------------------------------------------

    @rule(step=st.sampled_from(STEPS))
    def time_passes(self, step: int) -> None:
        self.rig.clock.pass_time(step)

    # --- transactions -------------------------------------------------------------------------------------------

    @rule(
        target=transactions,
        broker=st.integers(0, 1),
        shapes=st.lists(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3), min_size=1, max_size=3),
    )
    def prepare(self, broker: int, shapes: list[list[tuple[int | None, str | None]]]) -> Any:
        made = []
        for shape in shapes:
            self.count += 1
            transaction_id = uuid7(self.count, os.urandom(10))
            halves = [(*place, f"{self.count}.{n}".encode()) for n, place in enumerate(shape)]
            due = self.now + self.rig.policy.first_check
            made.append(Transaction(transaction_id, halves, due, self.rig.policy.max_checks))
        outcomes = self.call(broker, "prepare", [self.prepare_work(each) for each in made])
        assert outcomes == [TransactionOutcome(each.transaction_id, PREPARED) for each in made]
        self.model.transactions.update({each.transaction_id: each for each in made})
        return multiple(*(each.transaction_id for each in made))

    @rule(broker=st.integers(0, 1), transaction_id=transactions)
    def prepare_again(self, broker: int, transaction_id: bytes) -> None:
        known = self.model.transactions[transaction_id]
        (outcome,) = self.call(broker, "prepare", [self.prepare_work(known)])
        if known.sent:
            assert isinstance(outcome, AlreadyExists), outcome
        elif known.state in {PREPARED, COMMITTED}:
            assert outcome == TransactionOutcome(transaction_id, known.state, known.released)
        else:
            self.conflict(outcome, known.state)

    @rule(broker=st.integers(0, 1), transaction_id=transactions, place=st.sampled_from(SHAPES))
    def append(self, broker: int, transaction_id: bytes, place: tuple[int | None, str | None]) -> None:
        known = self.model.transactions[transaction_id]
        longer = replace(known, halves=[*known.halves, (*place, f"appended {len(known.halves)}".encode())])
        (outcome,) = self.call(broker, "prepare", [self.prepare_work(longer, len(known.halves))])
        if known.state is PREPARED:
            assert outcome == TransactionOutcome(transaction_id, PREPARED)
            known.halves = longer.halves
        elif known.sent:
            assert isinstance(outcome, AlreadyExists), outcome
        else:
            self.conflict(outcome, known.state)

    @rule(broker=st.integers(0, 1), transaction_id=transactions)
    def reuse_the_id(self, broker: int, transaction_id: bytes) -> None:
        known = self.model.transactions[transaction_id]
        if known.state is COMMITTED:
            return  # The content is not kept after the commit; the answer is the recorded one.
        other = replace(known, halves=[(None, None, b"something else")])
        (outcome,) = self.call(broker, "prepare", [self.prepare_work(other)])
        assert isinstance(outcome, AlreadyExists if known.state is PREPARED else VerdictConflict), outcome

    @rule(
        broker=st.integers(0, 1),
        verdicts=st.lists(
            st.tuples(transactions, st.booleans(), st.sampled_from(list(VerdictSource)[:3])), min_size=1, max_size=4
        ),
    )
    def decide(self, broker: int, verdicts: list[tuple[bytes, bool, VerdictSource]]) -> None:
        work = [VerdictWork(*each) for each in verdicts]
        outcomes = self.call(broker, "decide", work)
        fresh = []
        for item, outcome in zip(work, outcomes, strict=True):
            known = self.model.transactions[item.transaction_id]
            wanted = COMMITTED if item.commit else ROLLED_BACK
            if known.state is PREPARED or (known.state is PARKED and item.source is VerdictSource.OPERATOR):
                assert isinstance(outcome, TransactionOutcome), outcome
                known.state, known.released = wanted, tuple(outcome.released)
                if item.commit:
                    fresh.append(known)
            if known.state is wanted:
                assert outcome == TransactionOutcome(item.transaction_id, wanted, known.released)
            else:
                self.conflict(outcome, known.state)
        self.release(fresh)

    def release(self, committed: list[Transaction]) -> None:
        """Adds what was released to the model's log."""
        added: dict[int, dict[int, Written]] = defaultdict(dict)
        for known in committed:
            assert len(known.released) == len(known.halves)
            for position, ((fixed, message_group, body), (queue_id, offset)) in enumerate(
                zip(known.halves, known.released, strict=True)
            ):
                queue_no = self.rig.topic.queue_ids.index(queue_id)
                assert fixed in {None, queue_no}
                assert offset not in added[queue_no], "two messages at one offset"
                added[queue_no][offset] = Written(known.transaction_id, position, body, message_group)
        self.model.append(added)

    @rule(broker=st.integers(0, 1), commit=st.booleans())
    def decide_the_unknown(self, broker: int, commit: bool) -> None:
        (outcome,) = self.call(broker, "decide", [VerdictWork(os.urandom(16), commit, VerdictSource.PRODUCER)])
        assert isinstance(outcome, NotFound), outcome

    @rule(broker=st.integers(0, 1), transaction_id=transactions)
    def inspect(self, broker: int, transaction_id: bytes) -> None:
        known = self.model.transactions[transaction_id]
        detail = self.call(broker, "transaction", transaction_id)
        assert (detail.summary.state, detail.summary.check_count) == (known.state, known.checks)
        assert detail.summary.half_count == len(known.halves)
        if known.state in {COMMITTED, ROLLED_BACK}:
            assert (detail.op.state, tuple(detail.op.released)) == (known.state, known.released)

    @rule(
        target=transactions,
        broker=st.integers(0, 1),
        shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4),
    )
    def send(self, broker: int, shapes: list[tuple[int | None, str | None]]) -> Any:
        """Ordinary messages: transactions that are committed at once."""
        made = []
        for place in shapes:
            self.count += 1
            halves = [(*place, f"sent {self.count}".encode())]
            made.append(Transaction(uuid7(self.count, os.urandom(10)), halves, 0, 0, COMMITTED, sent=True))
        places = self.call(broker, "send", [self.send_work(each) for each in made])
        for known, place in zip(made, places, strict=True):
            known.released = (place,)
        self.release(made)
        self.model.transactions.update({each.transaction_id: each for each in made})
        return multiple(*(each.transaction_id for each in made))

    def send_work(self, known: Transaction) -> SendWork:
        queue_no, message_group, body = known.halves[0]
        message = Message("orders", body, message_group=message_group)
        return SendWork(known.transaction_id, self.rig.topic.topic_id, queue_no, message)

    @rule(broker=st.integers(0, 1), transaction_id=transactions)
    def send_again(self, broker: int, transaction_id: bytes) -> None:
        known = self.model.transactions[transaction_id]
        if known.state is COMMITTED:
            assert self.call(broker, "send", [self.send_work(known)] * 2) == [known.released[0]] * 2

    # --- checks -------------------------------------------------------------------------------------------------

    @rule(broker=st.integers(0, 1), lost=st.booleans())
    def check(self, broker: int, lost: bool) -> None:
        claimed = self.call(broker, "claim_checks", [self.rig.producer], self.rig.policy, 1000)
        due = {
            each.transaction_id: each
            for each in self.model.transactions.values()
            if each.state is PREPARED and each.due_at <= self.now and each.checks < each.limit
        }
        assert {check.transaction_id for check in claimed} == set(due)
        assert len(claimed) == len(due)
        for check in claimed:
            known = due[check.transaction_id]
            known.checks += 1
            known.due_at = self.now + self.rig.policy.interval
            assert (check.check_number, check.max_checks) == (known.checks, known.limit)
            assert check.check_number <= known.limit
            assert [message.body for message in check.halves] == [body for _, _, body in known.halves]
            if lost:
                self.call(broker, "return_check", check)
                known.checks -= 1
                known.due_at = self.now

    @rule(broker=st.integers(0, 1))
    def park(self, broker: int) -> None:
        parked = {transaction_id for transaction_id, *_ in self.call(broker, "park_exhausted", 1000)}
        spent = {
            each.transaction_id
            for each in self.model.transactions.values()
            if each.state is PREPARED and each.checks >= each.limit and each.due_at <= self.now
        }
        assert parked == spent
        for transaction_id in parked:
            self.model.transactions[transaction_id].state = PARKED

    @rule(broker=st.integers(0, 1), transaction_id=transactions)
    def check_again(self, broker: int, transaction_id: bytes) -> None:
        known = self.model.transactions[transaction_id]
        try:
            outcome = self.call(broker, "check_again", transaction_id, self.rig.policy, "ada", "why")
        except VerdictConflict as conflict:
            assert known.state in {COMMITTED, ROLLED_BACK}
            assert conflict.state == known.state
            return
        assert known.state in {PREPARED, PARKED}
        assert outcome.state is PREPARED
        known.state, known.due_at = PREPARED, self.now
        known.limit = known.checks + self.rig.policy.max_checks

    def conflict(self, outcome: Any, state: TransactionState) -> None:
        assert isinstance(outcome, VerdictConflict), outcome
        assert isinstance(outcome, Refused)
        assert outcome.state == state
