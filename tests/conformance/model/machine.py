"""All rules together, what holds after each of them, and how an example ends."""

from __future__ import annotations

from hypothesis.stateful import invariant

from conformance.model.delivery import Delivery
from conformance.model.groups import GroupRules
from conformance.model.transactions import SECOND


class Model(GroupRules):
    """Drives a store; fails where it differs from the model.

    The model predicts what is decided by the rules (states, offsets, refusals, attempts, checks) and leaves open what
    is not (which of several eligible messages a pull returns); there it checks that everything returned was eligible
    and that nothing eligible was left when there was room.
    """

    @invariant()
    def the_log_is_what_was_committed(self) -> None:
        if not hasattr(self.rig, "topic"):
            return
        for queue_no, log in enumerate(self.model.log):
            part = self.call(0, "read_queue", self.rig.topic, queue_no, 0, 100_000, 1 << 30)
            assert [(m.offset, m.transaction_id, m.position, m.body) for m in part.messages] == [
                (offset, written.transaction_id, written.position, written.body) for offset, written in enumerate(log)
            ]
        assert self.rig.miscounted() == []

    def teardown(self) -> None:
        """Everything committed is handled or dead in the end, for every group."""
        if not hasattr(self.rig, "topic"):
            return
        for reader in self.model.readers:
            if reader.paused:
                reader.paused = False
                self.pause(0, reader)
        for _ in range(200):
            left = [reader.number for reader in self.model.readers if any(entry.open for entry in reader.entries())]
            if not left:
                break
            self.rig.clock.pass_time(2 * 3600 * SECOND)
            for got in [self.pull(broker, number, 6) for number in left for broker in (0, 1)]:
                handed_out: list[Delivery] = list(got.values)
                if handed_out:
                    self.settle(0, [(delivery, "ack", 0) for delivery in handed_out])
        assert [entry for reader in self.model.readers for entry in reader.entries() if entry.open] == []
        assert self.rig.leases() == 0, "leases are left over"
