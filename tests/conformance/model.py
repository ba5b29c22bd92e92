"""What the storage must do, as a small model, and rules that drive a real store next to it.

The model predicts what is decided by the rules (states, offsets, refusals, attempts, checks) and leaves open what is
not (which of several eligible messages a pull returns); there it checks that everything returned was eligible and
that nothing eligible was left when there was room.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from broker.domain.ids import uuid7
from broker.domain.message import Message
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import AlreadyExists, BrokerError, NotFound, Refused, StaleReceipt, VerdictConflict
from broker.services.work import (
    AckOutcome,
    AckWork,
    ClaimWork,
    ExtendWork,
    Half,
    NackWork,
    PrepareWork,
    Receipt,
    SendWork,
    TransactionOutcome,
    VerdictWork,
)
from conformance.rig import MAX_ATTEMPTS, QUEUES, Rig

PREPARED, COMMITTED, ROLLED_BACK, PARKED = TransactionState
SECOND = 1_000_000
SHAPES = [(None, None), (0, None), (1, None), (0, "a"), (0, "b"), (1, "c")]
"""Queue and message group of a message; None: any, none."""
STEPS = (0, 1, SECOND, 6 * SECOND, 15 * SECOND, 30 * SECOND, 31 * SECOND, 3600 * SECOND)


@dataclass
class Transaction:
    """A transaction as it must be."""

    transaction_id: bytes
    halves: list[tuple[int | None, str | None, bytes]]
    due_at: int
    limit: int
    state: TransactionState = PREPARED
    checks: int = 0
    released: tuple[tuple[int, int], ...] = ()


@dataclass
class Entry:
    """A message in the log, and where it stands with the consumer group."""

    transaction_id: bytes
    position: int
    body: bytes
    message_group: str | None = None
    attempt: int = 0
    receipt: tuple[int, int] | None = None
    """Lease and token of its latest delivery; None before, and while it waits after it was given back."""
    available_at: int = 0
    handed_out: bool = False
    settled: bool = False
    dead: bool = False

    @property
    def open(self) -> bool:
        """Whether it must still be delivered or handled."""
        return not self.settled and not self.dead


@dataclass
class Expected:
    """The whole model."""

    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    logs: list[list[Entry]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    dead_seen: int = 0
    receipts: set[tuple[int, int]] = field(default_factory=set)

    def find(self, queue_no: int, offset: int) -> Entry:
        assert offset < len(self.logs[queue_no]), "delivered, and never committed"
        return self.logs[queue_no][offset]

    def peers(self, entry: Entry) -> list[Entry]:
        """The open messages of a message group, in order."""
        return [each for each in self.entries() if each.open and each.message_group == entry.message_group]

    def entries(self) -> list[Entry]:
        return [entry for log in self.logs for entry in log]


def delivered_before(log: list[Entry], offset: int, message_group: str | None) -> bool:
    """Whether all messages of a group (or of none) below an offset were handed out."""
    return all(entry.handed_out for entry in log[:offset] if entry.message_group == message_group)


class Model(RuleBasedStateMachine):
    """Drives a store; fails where it differs from the model."""

    rig: ClassVar[Rig]
    transactions = Bundle("transactions")
    deliveries = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.model = Expected()
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.rig.begin()

    @property
    def now(self) -> int:
        return self.rig.clock.time

    def call(self, broker: int, name: str, *rest: Any) -> Any:
        return self.rig.run(getattr(self.rig.stores[broker], name)(*rest))

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
        if known.state in {PREPARED, COMMITTED}:
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
        """Adds what was released to the model's log; offsets must be dense."""
        added: list[dict[int, Entry]] = [{} for _ in range(QUEUES)]
        for known in committed:
            assert len(known.released) == len(known.halves)
            for position, ((fixed, message_group, body), (queue_id, offset)) in enumerate(
                zip(known.halves, known.released, strict=True)
            ):
                queue_no = self.rig.topic.queue_ids.index(queue_id)
                assert fixed in {None, queue_no}
                assert offset not in added[queue_no], "two messages at one offset"
                added[queue_no][offset] = Entry(known.transaction_id, position, body, message_group)
        for log, new in zip(self.model.logs, added, strict=True):
            assert sorted(new) == list(range(len(log), len(log) + len(new))), "offsets are not dense"
            log.extend(new[offset] for offset in sorted(new))

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
            made.append(Transaction(uuid7(self.count, os.urandom(10)), halves, 0, 0, COMMITTED))
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
        parked = {transaction_id for transaction_id, _ in self.call(broker, "park_exhausted", 1000)}
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

    # --- delivery -----------------------------------------------------------------------------------------------

    @rule(target=deliveries, broker=st.integers(0, 1), limit=st.integers(1, 6))
    def pull(self, broker: int, limit: int) -> Any:
        wish = ClaimWork(self.rig.group, [self.rig.topic], f"c{broker}", limit, 1 << 20, self.rig.lease_time)
        (claimed,) = self.call(broker, "claim", [wish])
        assert not isinstance(claimed, BrokerError), claimed
        self.find_the_dead()
        got = []
        for each in claimed.parts:
            assert each.messages
            assert (each.lease_id, each.token) not in self.model.receipts, "an old receipt speaks for a new delivery"
            self.model.receipts.add((each.lease_id, each.token))
            assert each.expires_at == self.now + self.rig.lease_time
            got += [(m.queue_no, m.offset, Receipt(each.lease_id, each.token, m.offset)) for m in each.messages]
            before = {self.model.find(m.queue_no, m.offset).receipt for m in each.messages}
            if each.ordered:
                self.hand_out_in_order(each)
            for message in [] if each.ordered else each.messages:
                entry = self.hand_out(message, each)
                assert entry.message_group is None
                assert delivered_before(self.model.logs[message.queue_no], message.offset, None), "skipped a message"
                assert each.attempt == entry.attempt + 1 <= MAX_ATTEMPTS
                entry.attempt = each.attempt
            self.cut_off(before)
        assert len(got) <= limit
        if len(got) < limit and not claimed.more:
            assert self.takeable() == [], "there was room, and these were not delivered"
        return multiple(*got)

    @rule(target=deliveries, broker=st.integers(0, 1), limit=st.integers(1, 6))
    def pull_after_all_leases_ended(self, broker: int, limit: int) -> Any:
        self.rig.clock.pass_time(self.rig.lease_time)
        return self.pull(broker, limit)

    def cut_off(self, receipts: set[tuple[int, int] | None]) -> None:
        """Of a lease that was split the rest goes on under its name; what was handled before the rest left it."""
        for log in self.model.logs:
            for receipt in receipts - {None}:
                rest = [offset for offset, entry in enumerate(log) if entry.open and entry.receipt == receipt]
                for entry in log[: rest[0]] if rest else ():
                    if entry.receipt == receipt:
                        entry.receipt = None

    def takeable(self) -> list[Entry]:
        """What a consumer with room for it must get."""
        heads: dict[str, Entry] = {}
        loose = []
        for entry in self.model.entries():
            if not entry.open:
                continue
            if entry.message_group is None:
                loose.append(entry)
            else:
                heads.setdefault(entry.message_group, entry)
        return [entry for entry in [*loose, *heads.values()] if entry.available_at <= self.now]

    def hand_out(self, message: Any, delivered: Any) -> Entry:
        log = self.model.logs[message.queue_no]
        assert message.offset < len(log), "delivered, and never committed"
        entry = log[message.offset]
        assert (message.transaction_id, message.position, message.body, message.message_group) == (
            entry.transaction_id,
            entry.position,
            entry.body,
            entry.message_group,
        )
        assert self.model.transactions[entry.transaction_id].state is COMMITTED
        assert entry.open, "delivered again after it was handled"
        assert entry.available_at <= self.now, "delivered while somebody else holds it"
        entry.handed_out = True
        entry.receipt, entry.available_at = (delivered.lease_id, delivered.token), delivered.expires_at
        return entry

    def hand_out_in_order(self, delivered: Any) -> None:
        """Messages of one message group: the first ones that are open, and nobody else has any of the group."""
        head = self.model.find(delivered.messages[0].queue_no, delivered.messages[0].offset)
        assert head.message_group is not None
        peers = self.model.peers(head)
        assert all(entry.available_at <= self.now for entry in peers), "somebody else holds some of the group"
        entries = [self.hand_out(message, delivered) for message in delivered.messages]
        assert peers[: len(entries)] == entries, "not in order"
        assert delivered.attempt == head.attempt + 1 <= MAX_ATTEMPTS
        head.attempt = delivered.attempt
        # Those behind the head are handed out for the first time, and those left behind were not tried.
        for entry in entries[1:]:
            entry.attempt = 1
        for entry in peers[len(entries) :]:
            entry.attempt, entry.receipt, entry.available_at = 0, None, 0

    def find_the_dead(self) -> None:
        """Reads new dead letters; each was tried as often as allowed, and is dead once."""
        letters = self.call(0, "read_queue", self.rig.dead, 0, self.model.dead_seen, 1000, 1 << 30).messages
        for letter in letters:
            queue_no = int(letter.properties["halfmq.origin-queue"])
            entry = self.model.find(queue_no, int(letter.properties["halfmq.origin-offset"]))
            assert (letter.transaction_id, letter.position, letter.body) == (
                entry.transaction_id,
                entry.position,
                entry.body,
            )
            if not entry.dead:
                assert entry.open, "a handled message became a dead letter"
                assert entry.attempt == MAX_ATTEMPTS
                assert entry.available_at <= self.now, "given up while somebody held it"
                if entry.message_group is not None:
                    assert self.model.peers(entry)[0] is entry, "given up out of turn"
                    for peer in self.model.peers(entry)[1:]:
                        peer.attempt = 0
            entry.dead = True
            self.model.dead_seen += 1
        assert self.model.dead_seen == sum(entry.dead for entry in self.model.entries())

    @rule(
        broker=st.integers(0, 1),
        answers=st.lists(
            st.tuples(
                deliveries,
                st.sampled_from(["ack", "ack", "nack", "retry later", "untried", "extend"]),
                st.sampled_from([0, SECOND, 40 * SECOND]),
            ),
            min_size=1,
            max_size=5,
        ),
    )
    def settle(  # noqa: PLR0912 - one thing after the other, as the storage does it
        self, broker: int, answers: list[tuple[tuple[int, int, Receipt], str, int]]
    ) -> None:
        work: list[AckWork | NackWork | ExtendWork] = []
        acks: dict[tuple[int, int], AckWork] = {}
        said: list[AckWork | NackWork | ExtendWork] = []
        for (_, _, receipt), how, time in answers:
            if how == "ack":
                # Acks of one lease come together.
                lease = (receipt.lease_id, receipt.token)
                if lease not in acks:
                    work.append(acks.setdefault(lease, AckWork(*lease, [])))
                acks[lease].offsets.append(receipt.offset)
                said.append(acks[lease])
                continue
            if how == "extend":
                work.append(ExtendWork(receipt, time))
            else:
                delay = None if how == "retry later" else time
                work.append(NackWork(receipt, delay=delay, reason="why", untried=how == "untried"))
            said.append(work[-1])
        answered = {id(item): outcome for item, outcome in zip(work, self.call(broker, "settle", work), strict=True)}
        outcomes = []
        for ((_, _, receipt), _, _), item in zip(answers, said, strict=True):
            outcome = answered[id(item)]
            outcomes.append(outcome.refused.get(receipt.offset) if isinstance(outcome, AckOutcome) else outcome)
        valid = [self.speaks(place) for place, _, _ in answers]
        for fine, outcome in zip(valid, outcomes, strict=True):
            assert isinstance(outcome, StaleReceipt) != fine, outcome
        accepted = [(place, how, time) for (place, how, time), fine in zip(answers, valid, strict=True) if fine]
        for (queue_no, offset, _), how, _ in accepted:
            if how == "ack":
                self.model.find(queue_no, offset).settled = True
        for (_, _, receipt), how, time in accepted:
            if how == "extend":
                for entry in self.of_lease(receipt):
                    entry.available_at = self.now + time
        nacked = [
            (offset, how == "untried", self.model.find(queue_no, offset), receipt, how, time, outcome)
            for ((queue_no, offset, receipt), how, time), outcome in zip(
                accepted, [o for o, fine in zip(outcomes, valid, strict=True) if fine], strict=True
            )
            if how not in {"ack", "extend"}
        ]
        for _, _, entry, _, how, time, outcome in nacked:
            if entry.message_group is None and entry.open and entry.receipt is not None:
                self.give_back(entry, how, time, outcome)
        # A message group goes back as a whole, by its first message that was given back.
        for _, _, entry, receipt, how, time, outcome in sorted(nacked, key=lambda each: each[:2]):
            if entry.message_group is not None and entry.open and entry.receipt is not None:
                self.give_back_in_order(entry, receipt, how, time, outcome)
        self.find_the_dead()

    def give_back(self, entry: Entry, how: str, time: int, outcome: Any) -> None:
        entry.receipt = None
        if how == "untried":
            entry.attempt -= 1
            entry.available_at = self.now
        elif entry.attempt >= MAX_ATTEMPTS:
            assert outcome.dead_letter is not None
            entry.dead = True
        else:
            assert outcome.dead_letter is None
            entry.available_at = self.now + (time if how == "nack" else [1, 5][entry.attempt - 1] * SECOND)

    def give_back_in_order(self, entry: Entry, receipt: Receipt, how: str, time: int, outcome: Any) -> None:
        head = self.model.peers(entry)[0]
        if how != "untried" and entry is head and head.attempt >= MAX_ATTEMPTS:
            assert outcome.dead_letter is not None
            head.dead = True
            return
        assert outcome.dead_letter is None
        delay = {"untried": 0, "nack": time, "retry later": [1, 5, 10][head.attempt - 1] * SECOND}[how]
        lease = self.of_lease(receipt)
        for each in self.model.entries():
            if each.receipt == (receipt.lease_id, receipt.token):
                each.receipt = None
        for each in lease:
            each.available_at = self.now + delay
        head.attempt -= how == "untried"

    def of_lease(self, receipt: Receipt) -> list[Entry]:
        """Open messages of the lease that a receipt names, if it is still that lease's time."""
        wanted = (receipt.lease_id, receipt.token)
        return [entry for entry in self.model.entries() if entry.open and entry.receipt == wanted]

    def speaks(self, place: tuple[int, int, Receipt]) -> bool:
        """Whether a receipt still counts: it is the latest delivery's, and its lease has something open."""
        queue_no, offset, receipt = place
        entry = self.model.find(queue_no, offset)
        return entry.receipt == (receipt.lease_id, receipt.token) and bool(self.of_lease(receipt))

    # --- always -------------------------------------------------------------------------------------------------

    def conflict(self, outcome: Any, state: TransactionState) -> None:
        assert isinstance(outcome, VerdictConflict), outcome
        assert isinstance(outcome, Refused)
        assert outcome.state == state

    @invariant()
    def the_log_is_what_was_committed(self) -> None:
        if not hasattr(self.rig, "topic"):
            return
        for queue_no, log in enumerate(self.model.logs):
            part = self.call(0, "read_queue", self.rig.topic, queue_no, 0, 100_000, 1 << 30)
            assert [(m.offset, m.transaction_id, m.position, m.body) for m in part.messages] == [
                (offset, entry.transaction_id, entry.position, entry.body) for offset, entry in enumerate(log)
            ]
        assert self.rig.miscounted() == []

    def teardown(self) -> None:
        """Everything committed is handled or dead in the end."""
        if not hasattr(self.rig, "topic"):
            return
        for _ in range(200):
            if not any(entry.open for entry in self.model.entries()):
                break
            self.rig.clock.pass_time(2 * 3600 * SECOND)
            for got in (self.pull(0, 6), self.pull(1, 6)):
                places = [value for value in getattr(got, "values", [got]) if value is not None]
                if places:
                    self.settle(0, [(place, "ack", 0) for place in places])
        assert [entry for entry in self.model.entries() if entry.open] == []
        assert self.rig.leases() == 0, "leases are left over"
