"""Rules of delivery: pulling, acks, retries, leases, message groups, and dead letters, for each consumer group."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, multiple, rule

from broker.domain.lease import Receipt
from broker.errors import BrokerError, StaleReceipt
from broker.ports.delivery import AckOutcome, AckWork, ClaimWork, ExtendWork, NackWork
from conformance.model.expected import COMMITTED, Entry, Letter, Reader, delivered_before
from conformance.model.transactions import SECOND, TransactionRules
from conformance.rig import GROUPS

BROKERS = st.integers(0, 1)
READERS = st.integers(0, len(GROUPS) - 1)
HOW = ["ack", "ack", "nack", "retry later", "untried", "extend"]


class Delivery(NamedTuple):
    """A message that was handed out once."""

    reader: int
    queue_no: int
    offset: int
    receipt: Receipt

    @property
    def lease(self) -> tuple[int, int]:
        return self.receipt.lease_id, self.receipt.token


class Answer(NamedTuple):
    """What a consumer says of a delivery, and what became of it."""

    delivery: Delivery
    how: str
    time: int
    outcome: Any = None


class DeliveryRules(TransactionRules):
    """Drives consumers next to the model."""

    deliveries = Bundle("deliveries")

    # --- pulling ------------------------------------------------------------------------------------------------

    @rule(target=deliveries, broker=BROKERS, number=READERS, limit=st.integers(1, 6))
    def pull(self, broker: int, number: int, limit: int) -> Any:
        reader = self.model.readers[number]
        group = self.rig.groups[number]
        wish = ClaimWork(group, [self.rig.topic], f"c{broker}", limit, 1 << 20, self.rig.lease_time)
        (claimed,) = self.call(broker, "claim", [wish])
        assert not isinstance(claimed, BrokerError), claimed
        self.find_the_dead(reader)
        if reader.paused:
            assert claimed.parts == []
            return multiple()
        got: list[Delivery] = []
        for each in claimed.parts:
            assert each.messages
            assert (each.lease_id, each.token) not in reader.receipts, "an old receipt speaks for a new delivery"
            reader.receipts.add((each.lease_id, each.token))
            assert each.expires_at == self.now + self.rig.lease_time
            got += [
                Delivery(number, m.queue_no, m.offset, Receipt(each.lease_id, each.token, m.offset))
                for m in each.messages
            ]
            before = {reader.find(m.queue_no, m.offset).receipt for m in each.messages}
            if each.ordered:
                self.hand_out_in_order(reader, each)
            else:
                self.hand_out_loose(reader, each)
            reader.cut_off(before)
        assert len(got) <= limit
        if len(got) < limit and not claimed.more:
            assert reader.takeable(self.now) == [], "there was room, and these were not delivered"
        return multiple(*got)

    @rule(target=deliveries, broker=BROKERS, number=READERS, limit=st.integers(1, 6))
    def pull_after_all_leases_ended(self, broker: int, number: int, limit: int) -> Any:
        self.rig.clock.pass_time(self.rig.lease_time)
        return self.pull(broker, number, limit)

    @rule(broker=BROKERS, number=READERS, how=st.sampled_from(["nack", "retry later"]), times=st.integers(1, 4))
    def fail(self, broker: int, number: int, how: str, times: int) -> None:
        """A consumer that gives back all it gets, and asks a moment too early: by single steps it took too long."""
        reader = self.model.readers[number]
        self.rig.clock.pass_time(self.rig.lease_time)
        for _ in range(times):
            handed_out = self.pull(broker, number, 6).values
            if handed_out:
                self.settle(broker, [(delivery, how, SECOND) for delivery in handed_out])
            waiting = [entry.available_at for entry in reader.entries() if entry.open and entry.available_at > self.now]
            if waiting:
                self.rig.clock.time = min(waiting) - 1
                self.pull(1 - broker, number, 6)
                self.rig.clock.time = max(self.now, min(waiting))

    def hand_out(self, reader: Reader, message: Any, delivered: Any) -> Entry:
        entry = reader.find(message.queue_no, message.offset)
        written = entry.message
        assert (message.transaction_id, message.position, message.body, message.message_group) == (
            written.transaction_id,
            written.position,
            written.body,
            written.message_group,
        )
        assert self.model.transactions[written.transaction_id].state is COMMITTED
        assert entry.open, "delivered again after it was handled"
        assert entry.available_at <= self.now, "delivered while somebody else holds it"
        entry.handed_out = True
        entry.receipt, entry.available_at = (delivered.lease_id, delivered.token), delivered.expires_at
        return entry

    def count_attempt(self, reader: Reader, entry: Entry, attempt: int) -> None:
        assert attempt == entry.attempt + 1
        assert not reader.is_last(entry.attempt), "tried once too often"
        entry.attempt = attempt

    def hand_out_loose(self, reader: Reader, delivered: Any) -> None:
        for message in delivered.messages:
            entry = self.hand_out(reader, message, delivered)
            assert entry.message_group is None
            assert delivered_before(reader.logs[message.queue_no], message.offset, None), "skipped a message"
            self.count_attempt(reader, entry, delivered.attempt)

    def hand_out_in_order(self, reader: Reader, delivered: Any) -> None:
        """Messages of one message group: the first ones that are open, and nobody else has any of the group."""
        head = reader.find(delivered.messages[0].queue_no, delivered.messages[0].offset)
        assert head.message_group is not None
        peers = reader.peers(head)
        assert all(entry.available_at <= self.now for entry in peers), "somebody else holds some of the group"
        entries = [self.hand_out(reader, message, delivered) for message in delivered.messages]
        assert peers[: len(entries)] == entries, "not in order"
        self.count_attempt(reader, head, delivered.attempt)
        # Those behind the head are handed out for the first time, and those left behind were not tried.
        for entry in entries[1:]:
            entry.attempt = 1
        for entry in peers[len(entries) :]:
            entry.attempt, entry.receipt, entry.available_at = 0, None, 0

    # --- dead letters -------------------------------------------------------------------------------------------

    def find_the_dead(self, reader: Reader) -> None:
        """Reads new dead letters; each was tried as often as allowed, and is there once."""
        topic = self.rig.dead[reader.number]
        letters = self.call(0, "read_queue", topic, 0, len(reader.letters), 1000, 1 << 30).messages
        for letter in letters:
            queue_no = int(letter.properties["halfmq.origin-queue"])
            entry = reader.find(queue_no, int(letter.properties["halfmq.origin-offset"]))
            written = entry.message
            assert (letter.transaction_id, letter.position, letter.body) == (
                written.transaction_id,
                written.position,
                written.body,
            )
            if entry in reader.buried:
                reader.buried.remove(entry)
            else:
                assert entry.open, "a handled message became a dead letter, or one became two"
                assert entry.available_at <= self.now, "given up while somebody held it"
                self.bury(reader, entry)
            reader.letters.append(Letter(letter.offset, entry))
        assert reader.buried == [], "given up, and no dead letter"

    def bury(self, reader: Reader, entry: Entry) -> None:
        assert reader.is_last(entry.attempt), "given up too early"
        if entry.message_group is not None:
            assert reader.peers(entry)[0] is entry, "given up out of turn"
            for peer in reader.peers(entry)[1:]:
                peer.attempt = 0
        entry.dead = True

    # --- settling -----------------------------------------------------------------------------------------------

    @rule(
        broker=BROKERS,
        answers=st.lists(
            st.tuples(deliveries, st.sampled_from(HOW), st.sampled_from([0, SECOND, 40 * SECOND])),
            min_size=1,
            max_size=5,
        ),
    )
    def settle(self, broker: int, answers: list[tuple[Delivery, str, int]]) -> None:
        said = [Answer(*answer) for answer in answers]
        valid = [self.speaks(each.delivery) for each in said]
        said = self.say(broker, said)
        for each, fine in zip(said, valid, strict=True):
            assert isinstance(each.outcome, StaleReceipt) != fine, each
        self.believe([each for each, fine in zip(said, valid, strict=True) if fine])
        for reader in self.model.readers:
            self.find_the_dead(reader)

    def speaks(self, delivery: Delivery) -> bool:
        """Whether a receipt still counts: it is the latest delivery's, and its lease has something open."""
        reader = self.model.readers[delivery.reader]
        entry = reader.find(delivery.queue_no, delivery.offset)
        return entry.receipt == delivery.lease and bool(reader.of_lease(delivery.lease))

    def say(self, broker: int, answers: list[Answer]) -> list[Answer]:
        """Tells the store; the answers with what became of each. Acks of one lease come together."""
        acks: dict[tuple[int, int], AckWork] = {}
        work: list[AckWork | NackWork | ExtendWork] = []
        items: list[AckWork | NackWork | ExtendWork] = []
        for delivery, how, time, _ in answers:
            if how == "ack":
                if delivery.lease not in acks:
                    work.append(acks.setdefault(delivery.lease, AckWork(*delivery.lease, [])))
                acks[delivery.lease].offsets.append(delivery.offset)
                items.append(acks[delivery.lease])
                continue
            if how == "extend":
                work.append(ExtendWork(delivery.receipt, time))
            else:
                delay = None if how == "retry later" else time
                work.append(NackWork(delivery.receipt, delay=delay, reason="why", untried=how == "untried"))
            items.append(work[-1])
        outcomes = {id(item): outcome for item, outcome in zip(work, self.call(broker, "settle", work), strict=True)}
        said = []
        for each, item in zip(answers, items, strict=True):
            outcome = outcomes[id(item)]
            if isinstance(outcome, AckOutcome):
                outcome = outcome.refused.get(each.delivery.offset)
            said.append(each._replace(outcome=outcome))
        return said

    def believe(self, answers: list[Answer]) -> None:
        """Applies what was accepted: acks first, then extensions, then what is given back."""
        nacks: list[tuple[Answer, Reader, Entry]] = []
        for each in answers:
            reader = self.model.readers[each.delivery.reader]
            entry = reader.find(each.delivery.queue_no, each.delivery.offset)
            if each.how == "ack":
                entry.settled = True
            elif each.how != "extend":
                nacks.append((each, reader, entry))
        for each in answers:
            if each.how == "extend":
                for entry in self.model.readers[each.delivery.reader].of_lease(each.delivery.lease):
                    entry.available_at = self.now + each.time
        for each, reader, entry in nacks:
            if entry.message_group is None and entry.open and entry.receipt is not None:
                self.give_back(reader, entry, each)
        # A message group goes back as a whole, by its first message that was given back.
        for each, reader, entry in sorted(nacks, key=lambda nack: (nack[0].delivery.offset, nack[0].how == "untried")):
            if entry.message_group is not None and entry.open and entry.receipt is not None:
                self.give_back_in_order(reader, entry, each)

    def give_back(self, reader: Reader, entry: Entry, answer: Answer) -> None:
        entry.receipt = None
        dead = answer.how != "untried" and reader.is_last(entry.attempt)
        assert (answer.outcome.dead_letter is not None) == dead
        if dead:
            self.bury(reader, entry)
            reader.buried.append(entry)
            return
        entry.available_at = self.now + self.delay(reader, entry, answer)
        entry.attempt -= answer.how == "untried"

    def give_back_in_order(self, reader: Reader, entry: Entry, answer: Answer) -> None:
        head = reader.peers(entry)[0]
        dead = answer.how != "untried" and entry is head and reader.is_last(head.attempt)
        assert (answer.outcome.dead_letter is not None) == dead
        if dead:
            # The rest of its lease stays where it is.
            entry.dead = True
            reader.buried.append(entry)
            return
        lease = reader.of_lease(answer.delivery.lease)
        for each in reader.entries():
            if each.receipt == answer.delivery.lease:
                each.receipt = None
        for each in lease:
            each.available_at = self.now + self.delay(reader, head, answer)
        head.attempt -= answer.how == "untried"

    def delay(self, reader: Reader, tried: Entry, answer: Answer) -> int:
        """Microseconds until it is delivered again."""
        if answer.how == "untried":
            return 0
        return answer.time if answer.how == "nack" else reader.delay_after(tried.attempt)
