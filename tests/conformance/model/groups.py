"""Rules of consumer groups: what operators do to them while consumers are at work."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from broker.domain.group import EARLIEST, LATEST
from broker.ports.groups import DeadLetterSearch
from conformance.model.delivery import BROKERS, READERS, DeliveryRules
from conformance.model.expected import Letter, Reader
from conformance.rig import QUEUES


class GroupRules(DeliveryRules):
    """Drives operators next to the model."""

    @rule(broker=BROKERS, number=READERS, queue_no=st.integers(0, QUEUES - 1), offset=st.integers(0, 12))
    def seek(self, broker: int, number: int, queue_no: int, offset: int) -> None:
        """To an offset of a queue; one past the end is the end."""
        reader = self.model.readers[number]
        queue_id = self.rig.topic.queue_ids[queue_no]
        self.call(broker, "seek_group", self.rig.groups[number], [queue_id], to=None, offset=offset)
        reader.begin_at(queue_no, offset)

    @rule(broker=BROKERS, number=READERS, to=st.sampled_from([EARLIEST, LATEST]))
    def reset(self, broker: int, number: int, to: int) -> None:
        """To the beginning or the end of the topic."""
        reader = self.model.readers[number]
        group, queues = self.rig.groups[number], self.rig.topic.queue_ids
        self.call(broker, "seek_group", group, queues, to=to, offset=None)
        for queue_no, log in enumerate(reader.logs):
            reader.begin_at(queue_no, len(log) if to == LATEST else 0)

    @rule(broker=BROKERS, number=READERS)
    def pause_or_go_on(self, broker: int, number: int) -> None:
        reader = self.model.readers[number]
        reader.paused = not reader.paused
        self.pause(broker, reader)

    def pause(self, broker: int, reader: Reader) -> None:
        self.call(broker, "pause_group", self.rig.groups[reader.number], paused=reader.paused, reason="why")

    @rule(broker=BROKERS, number=READERS)
    def make_anew(self, broker: int, number: int) -> None:
        """Deletes a group and makes one of its name, which begins where the topic does."""
        reader = self.model.readers[number]
        self.call(broker, "delete_group", self.rig.groups[number])
        self.rig.run(self.rig.make_group(number, self.rig.stores[broker]))
        reader.paused = False
        for queue_no in range(QUEUES):
            reader.begin_at(queue_no, 0)

    @rule(
        target=DeliveryRules.deliveries, broker=BROKERS, number=READERS, chosen=st.sets(st.integers(0, 4), min_size=1)
    )
    def redrive(self, broker: int, number: int, chosen: set[int]) -> Any:
        """Some dead letters, also of those that went back before: they stay. The others are delivered again."""
        reader = self.model.readers[number]
        wanted = [
            letter for index, letter in enumerate(reader.letters) if index in chosen and self.clear(reader, letter)
        ]
        search = DeadLetterSearch(self.rig.groups[number], offsets=frozenset(letter.offset for letter in wanted))
        back = self.call(broker, "redrive", search, republish=False)
        fresh = [letter for letter in wanted if not letter.redriven]
        assert (back.redriven, back.republished, back.left) == (len(fresh), 0, len(wanted) - len(fresh))
        for letter in fresh:
            letter.redriven = True
            entry = letter.entry
            entry.dead, entry.attempt, entry.receipt, entry.available_at = False, 0, None, self.now
        return self.pull(1 - broker, number, 6)

    def clear(self, reader: Reader, letter: Letter) -> bool:
        """Whether its message is nowhere else by now, and of its message group nobody has any."""
        entry = letter.entry
        if letter.redriven:
            return True
        if not entry.dead or entry not in reader.entries():
            return False
        return entry.message_group is None or not any(peer.handed_out for peer in reader.peers(entry))

    @rule(broker=BROKERS, number=READERS)
    def describe(self, broker: int, number: int) -> None:
        """Lag and progress are those of the messages that are not handled."""
        reader = self.model.readers[number]
        for state in self.call(broker, "group_progress", self.rig.groups[number]):
            log = reader.logs[state.queue_no]
            unhandled = [offset for offset, entry in enumerate(log) if entry.open]
            assert (state.lag, state.committed_offset) == (len(unhandled), min([*unhandled, len(log)]))
