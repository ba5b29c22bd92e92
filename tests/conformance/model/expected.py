"""What must be so: transactions, the log, and where each consumer group stands with every message of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.domain.transaction import TransactionState
from conformance.rig import GROUPS, QUEUES

PREPARED, COMMITTED, ROLLED_BACK, PARKED = TransactionState
MOST_ATTEMPTS = (3, None)
RETRY_SECONDS = ((1, 5, 10), (2, 7))
"""Of each group of the rig; the first one has the default delays, the second one tries for ever."""


@dataclass
class Transaction:
    """A transaction as it must be; `sent`: an ordinary message, of no producer group."""

    transaction_id: bytes
    halves: list[tuple[int | None, str | None, bytes]]
    due_at: int
    limit: int
    state: TransactionState = PREPARED
    checks: int = 0
    released: tuple[tuple[int, int], ...] = ()
    sent: bool = False


@dataclass(frozen=True)
class Written:
    """A message in the log."""

    transaction_id: bytes
    position: int
    body: bytes
    message_group: str | None


@dataclass(eq=False)
class Entry:
    """Where a message stands with a consumer group."""

    message: Written
    attempt: int = 0
    receipt: tuple[int, int] | None = None
    """Lease and token of its latest delivery; None before, and while it waits after it was given back."""
    available_at: int = 0
    handed_out: bool = False
    settled: bool = False
    dead: bool = False

    @property
    def message_group(self) -> str | None:
        return self.message.message_group

    @property
    def open(self) -> bool:
        """Whether it must still be delivered or handled."""
        return not self.settled and not self.dead


@dataclass(eq=False)
class Letter:
    """A dead letter."""

    offset: int
    entry: Entry
    redriven: bool = False


@dataclass(eq=False)
class Reader:
    """A consumer group."""

    number: int
    logs: list[list[Entry]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    paused: bool = False
    letters: list[Letter] = field(default_factory=list)
    buried: list[Entry] = field(default_factory=list)
    """Given up by a nack, and not seen in the dead letter topic yet."""
    receipts: set[tuple[int, int]] = field(default_factory=set)

    def is_last(self, attempt: int) -> bool:
        """Whether the message is given up when this one fails."""
        most = MOST_ATTEMPTS[self.number]
        return most is not None and attempt >= most

    def delay_after(self, attempt: int) -> int:
        """Microseconds from a failure to the next attempt."""
        delays = RETRY_SECONDS[self.number]
        return delays[min(attempt, len(delays)) - 1] * 1_000_000

    def find(self, queue_no: int, offset: int) -> Entry:
        assert offset < len(self.logs[queue_no]), "delivered, and never committed"
        return self.logs[queue_no][offset]

    def entries(self) -> list[Entry]:
        return [entry for log in self.logs for entry in log]

    def peers(self, entry: Entry) -> list[Entry]:
        """The open messages of a message group, in order."""
        return [each for each in self.entries() if each.open and each.message_group == entry.message_group]

    def of_lease(self, lease: tuple[int, int]) -> list[Entry]:
        """Open messages of a lease, if it is still that lease's time."""
        return [entry for entry in self.entries() if entry.open and entry.receipt == lease]

    def takeable(self, now: int) -> list[Entry]:
        """What a consumer with room for it must get."""
        end_offsets: dict[str, Entry] = {}
        loose = []
        for entry in self.entries():
            if not entry.open:
                continue
            if entry.message_group is None:
                loose.append(entry)
            else:
                end_offsets.setdefault(entry.message_group, entry)
        return [entry for entry in [*loose, *end_offsets.values()] if entry.available_at <= now]

    def cut_off(self, receipts: set[tuple[int, int] | None]) -> None:
        """Of a lease that was split the rest goes on under its name; what was handled before the rest left it."""
        for log in self.logs:
            for receipt in receipts - {None}:
                rest = [offset for offset, entry in enumerate(log) if entry.open and entry.receipt == receipt]
                for entry in log[: rest[0]] if rest else ():
                    if entry.receipt == receipt:
                        entry.receipt = None

    def begin_at(self, queue_no: int, offset: int) -> None:
        """Forgets what became of a queue: what lies below counts as handled, the rest was never handed out."""
        log = self.logs[queue_no]
        for number, entry in enumerate(log):
            log[number] = Entry(entry.message, handed_out=number < offset, settled=number < offset)


def delivered_before(log: list[Entry], offset: int, message_group: str | None) -> bool:
    """Whether all messages of a group (or of none) below an offset were handed out."""
    return all(entry.handed_out for entry in log[:offset] if entry.message_group == message_group)


@dataclass
class Expected:
    """The whole model."""

    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    log: list[list[Written]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    readers: list[Reader] = field(default_factory=lambda: [Reader(number) for number in range(len(GROUPS))])

    def append(self, added: dict[int, dict[int, Written]]) -> None:
        """Adds to queues, by offset; they must be dense."""
        for queue_no, log in enumerate(self.log):
            new = added.get(queue_no, {})
            assert sorted(new) == list(range(len(log), len(log) + len(new))), "offsets are not dense"
            for offset in sorted(new):
                log.append(new[offset])
                for reader in self.readers:
                    reader.logs[queue_no].append(Entry(new[offset]))
