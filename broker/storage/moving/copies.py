"""What is copied before and after the seal, by steps that each are a transaction in the cell that is moved to."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import TYPE_CHECKING

from broker.storage.catalog.moves import MoveState
from broker.storage.moving import aligning, arriving, comparing, contents, copying, same_ids, taken_rows
from broker.storage.moving.columns import places_of
from broker.storage.moving.copying import Queue
from broker.storage.moving.records import ProducerGroups
from broker.storage.moving.refusals import MoveRefused, Why
from broker.storage.retention.topic_deletion import sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.storage.moving.aligning import Part
    from broker.storage.moving.databases import Databases
    from broker.storage.moving.home import Move
    from broker.storage.moving.taken_rows import Stored

LITTLE = 1000
"""Messages that came while all others were copied, below which the topics can be sealed."""
BRIEF = 1.0
"""Seconds of a pass: what came meanwhile is copied as soon, however many messages it is."""
MOST_PASSES = 20
"""Over all that moves. What has more to copy in the last one is not sealed."""
TOLD_EVERY = 20
"""Pieces of a queue."""


class Copies:
    """Copies of what moves.

    Attributes:
        groups: producer groups of both cells.
    """

    def __init__(self, databases: Databases, move: Move, tell: Callable[[str], None]) -> None:
        """Takes the cells, the move, and who is told."""
        self._databases = databases
        self._move = move
        self._tell = tell
        self.groups = ProducerGroups()
        self._compared: dict[Queue, int] = {}
        self._cleared = False

    def ahead(self) -> None:
        """Copies logs and dedup keys while the topics are in use, until little is left.

        Raises:
            MoveRefused: the move was given up or is decided, the copy differs, or as much comes as is copied.
        """
        queues = self._catch_up()
        keys = [aligning.dedup_keys(topic_id) for topic_id in sorted({queue.topic_id for queue in queues})]
        self._align(keys, sealed=False)
        for queue in queues:
            self._compare(queue)
        # That may last, and says nothing of how fast is copied.
        self._catch_up()
        # What came while all that was done is not left for the seal, keys as little as messages.
        self._align(keys, sealed=False)
        self._catch_up()

    def _catch_up(self) -> list[Queue]:
        """Copies messages until few come while it is done; returns the queues.

        Raises:
            MoveRefused: the move was given up or is decided, or as much comes as is copied.
        """
        copied = 0
        for _ in range(MOST_PASSES):
            began = time.monotonic()
            found = self._databases.read(self._move.source, lambda session: contents.look_up(session, self._move.names))
            self._clear(found.topic_ids)
            queues = self._queues(found.topic_ids)
            copied = self._copy(queues)
            self._tell(f"copied {copied} messages")
            if copied <= LITTLE or time.monotonic() - began <= BRIEF:
                return queues
        raise MoveRefused(
            f"What moves is filled about as fast as it is copied: in the last of {MOST_PASSES} passes {copied} messages"
            " were new, and if it were sealed now, it would stand still until as many are copied. Nothing does so far;"
            " go on with `halfmq cells move --resume` when there is less, or give up with `--give-up`.",
            Why.FILLED_TOO_FAST,
        )

    def refuse_same_ids(self) -> None:
        """Refuses the move while nothing stands still yet, if a transaction without a verdict is in both cells.

        Raises:
            MoveRefused: one is.
        """
        names, databases = self._move.names, self._databases
        coming = databases.read(
            self._move.source,
            lambda session: same_ids.undecided(session, contents.look_up(session, names).topic_ids),
        )
        if coming:
            databases.read(self._move.target, lambda session: same_ids.rolled_back(session, coming))

    def _queues(self, topic_ids: list[int]) -> list[Queue]:
        query = "SELECT topic_id, queue_id FROM queue WHERE topic_id"
        found = self._databases.read(self._move.source, lambda session: session.fetch_in(query, topic_ids))
        return sorted(Queue(*row) for row in found)

    def _clear(self, topic_ids: list[int]) -> None:
        """Deletes what an earlier move of the same topics left in the cell that they come back to."""
        if self._cleared:
            return
        target = self._move.target
        for topic_id in self._databases.read(target, lambda session: arriving.leftovers(session, topic_ids)):
            while self._databases.write(target, partial(sweep, topic_id=topic_id)):
                pass
        self._cleared = True

    def _copy(self, queues: list[Queue]) -> int:
        """Copies what is missing of queues now, and not what comes meanwhile; returns how many messages."""
        move, count = self._move, 0
        self._databases.write(move.target, lambda session: copying.note_queues(session, move.number, set(queues)))
        for queue in queues:
            count += self._copy_queue(queue, count)
        return count

    def _copy_queue(self, queue: Queue, before: int) -> int:
        move, databases, groups, count = self._move, self._databases, self.groups, 0
        # A queue that is written to as fast as it is copied has no end to wait for.
        end = databases.read(move.source, partial(comparing.end_of, queue=queue))
        for pieces in itertools.count(1):
            after = databases.read(move.target, partial(copying.last_copied, queue=queue))
            if after is not None and after + 1 >= end:
                break
            piece = databases.read(move.source, partial(copying.read_piece, queue=queue, after=after, groups=groups))
            if not piece.rows:
                break
            store = partial(copying.store_piece, move_id=move.number, piece=piece, groups=groups)
            if databases.write(move.target, store):
                count += len(piece.rows)
            if pieces % TOLD_EVERY == 0:
                self._tell(f"copied {before + count} messages so far")
        return count

    def _align(self, parts: list[Part], *, sealed: bool) -> None:
        move, databases = self._move, self._databases
        for part in parts:
            after = None
            while True:
                one, rows = databases.read(move.source, partial(aligning.read_range, part=part, after=after))
                if databases.read(move.target, partial(aligning.differs, one=one, rows=rows)):
                    align = partial(aligning.align, move_id=move.number, one=one, rows=rows, sealed=sealed)
                    databases.write(move.target, align)
                if one.until is None:
                    break
                after = one.until

    def _compare(self, queue: Queue) -> None:
        """Compares what was copied of a queue and was not compared yet."""
        move, databases = self._move, self._databases
        low = databases.read(move.source, partial(comparing.low_of, queue=queue))
        if low is None:
            return
        end = databases.read(move.target, partial(comparing.end_of, queue=queue))
        first = max(self._compared.get(queue, 0), low)
        while first < end:
            until = databases.read(move.target, partial(comparing.following, queue=queue, first=first, end=end))
            measure = partial(comparing.measure, queue=queue, first=first, end=until)
            there, here = databases.read(move.source, measure), databases.read(move.target, measure)
            # Retention may have deleted some of them there meanwhile.
            if there != here and databases.read(move.source, partial(comparing.low_of, queue=queue)) == low:
                raise comparing.unequal(queue, there, here)
            first = self._compared[queue] = until

    def rest(self) -> None:
        """Copies what is missing once the topics are sealed.

        Raises:
            MoveRefused: the move was given up or is decided, or the copy differs.
        """
        move, databases = self._move, self._databases
        databases.write(move.target, lambda session: copying.note_sealed(session, move.number))
        low = self._sealed_queues()
        self._copy(sorted(low))
        for queue, first in low.items():
            while databases.write(move.target, partial(copying.trim, move_id=move.number, queue=queue, low=first)):
                pass
        self._drop_others(set(low))
        topic_ids = sorted({queue.topic_id for queue in low})
        self._align([aligning.dedup_keys(topic_id) for topic_id in topic_ids], sealed=True)
        self._align([part for queue in low for part in aligning.of_queue(queue.queue_id)], sealed=True)
        self._renew_records()
        for queue in low:
            self._compare(queue)
        self._make_producer_groups()

    def _sealed_queues(self) -> dict[Queue, int]:
        """The queues that were sealed, and the first offset that each has kept."""
        found = {}
        for _, _, columns, rows in self.sealed("queue"):
            at = places_of(columns)
            for row in rows:
                found[Queue(row[at["topic_id"]], row[at["queue_id"]])] = row[at["min_offset"]]
        return found

    def _drop_others(self, sealed: set[Queue]) -> None:
        """Deletes what was copied of topics that were deleted, and perhaps created again, before the seal."""
        move, databases = self._move, self._databases
        copied = databases.read(move.target, lambda session: copying.copied_queues(session, move.number))
        for queue in sorted(copied - sealed):
            drop = partial(copying.drop, move_id=move.number, queue=queue, state=MoveState.COMING)
            while databases.write(move.target, drop):
                pass

    def _renew_records(self) -> None:
        """Copies op records again that may have changed: some of their messages were waiting for their time."""
        move, databases, after = self._move, self._databases, 0
        while True:
            found = databases.read(
                move.target,
                partial(taken_rows.read_one, move_id=move.number, after=after, origin=copying.SCHEDULED),
            )
            if found is None:
                return
            after = found.number
            ids = {row[0] for row in found.rows}
            records = databases.read(move.source, partial(copying.read_records, ids=ids, groups=self.groups))
            databases.write(
                move.target,
                partial(copying.renew_records, move_id=move.number, records=records, groups=self.groups),
            )

    def _make_producer_groups(self) -> None:
        ids = {row[0] for stored in self.sealed("producer_group") for row in stored.rows}
        self._databases.read(self._move.source, lambda session: self.groups.learn(session, ids))
        if ids:
            self._databases.write(
                self._move.target,
                lambda session: arriving.make_producer_groups(session, self._move.number, self.groups, ids),
            )

    def sealed(self, origin: str = "") -> Iterator[Stored]:
        """What was sealed, one piece at a time."""
        after = 0
        while True:
            found = self._databases.read(
                self._move.source,
                partial(taken_rows.read_one, move_id=self._move.number, after=after, origin=origin),
            )
            if found is None:
                return
            yield found
            after = found.number

    def ends(self) -> dict[Queue, int]:
        """Where the sealed queues end in the cell that is left."""
        return {
            queue: self._databases.read(self._move.source, partial(comparing.end_of, queue=queue))
            for queue in self._sealed_queues()
        }
