"""Submissions: validated as messages of a producer are, then released."""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.ids import format_id
from broker.errors import BrokerError, InvalidArgument, Moved, NotFound, RowsLocked, StorageRejected, StorageUnavailable
from broker.ports.log import SendWork
from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.submissions import PassedOver, SubmissionWork
from broker.services.ids import new_id
from broker.services.producing.sending import order_of
from broker.services.producing.telling import tell_stored

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from broker.ports.submissions import ReleasedSubmissions, Submission, SubmissionStore
    from broker.services.producing.validation import MessageValidator
    from broker.services.wakeups import Wakeups

logger = logging.getLogger("halfmq.submissions")

MOST_PASSED_OVER = 1000
"""Keys, and message groups, that are passed over in a query; what waits for others is read each time."""
MOST_TROUBLED = 1000
REST_HELD = 0.5
"""Seconds until a queue that another session holds is tried again."""
RESTS_LOCKED = (5.0, 10.0, 20.0, 60.0)
"""Seconds until one is tried again that needs a row which another session holds."""
RESTS_FAILED = (1.0, 5.0, 20.0, 60.0)
"""Seconds until one is tried again that the database did not store."""
TRIES = 3
"""After so many it is refused, if the database has stored others meanwhile; else it may be the database's fault."""
MOST_TOLD = 10
"""Refusals of a step that are logged one by one."""
_FORGET_AFTER = 600.0


@dataclass(slots=True)
class _Trouble:
    """A submission that could not be released, by itself either."""

    since: float
    until: float = 0.0
    locked: int = 0
    failed: int = 0


class SubmissionService:
    """Turns committed submissions into messages."""

    def __init__(
        self, store: SubmissionStore, validator: MessageValidator, wakeups: Wakeups, observer: Observer = NO_OBSERVER
    ) -> None:
        """Takes the store, the validator, the wake-ups, and the observer."""
        self._observer = observer
        self._store = store
        self._validator = validator
        self._wakeups = wakeups
        self._pending: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._behind: dict[tuple[str, str], tuple[str, str]] = {}
        self._held: dict[tuple[str, str | None], float] = {}
        """Topics and message groups whose queues other sessions held, and until when they are not tried again."""
        self._troubled: dict[int, _Trouble] = {}
        self._stored_at = 0.0
        self.has_more = False
        """Whether the last call left some that were committed before it."""
        self._has_waited = False
        """Whether this round has met a locked row: it waits for no other."""

    async def release(self) -> int | None:
        """Releases some; how many were dealt with. None: another broker is at it.

        Those that have to wait hold up nothing but later ones of their message groups. Those that wait for a verdict
        are not read again before it is there.
        """
        await self._forget_decided()
        now = time.monotonic()
        self._troubled = {number: each for number, each in self._troubled.items() if now < each.until + _FORGET_AFTER}
        self._has_waited = False
        self.has_more = False
        until = await self._store.newest_submission()
        if until is None:
            return 0
        waiting: set[tuple[str, str]] = set()
        after: int | None = None
        self._held = {name: rests for name, rests in self._held.items() if now < rests}
        while found := await self._store.submissions(until, after, self._passed_over()):
            ended = 0
            for part in _parts(found):
                done = await self._release(part, waiting)
                if done is None:
                    return None
                ended += done
            if ended:
                self.has_more = found[-1].number < until
                return ended
            after = found[-1].number
        return 0

    async def _release(self, found: Sequence[Submission], waiting: set[tuple[str, str]]) -> int | None:
        """Releases a part; adds the message groups whose submissions have to wait."""
        found = self._without_waiting(found, waiting)
        if len(found) > 1 and any(each.number in self._troubled for each in found):
            return await self._release_apart(_apart(found, self._troubled), waiting)
        now = self._validator.now()
        missing: dict[str, NotFound | Moved] = {}
        work = [await self._work(each, now, missing) for each in found]
        if not work:
            return 0
        try:
            done = await self._store.release_submissions(work, wait=not self._has_waited)
        except Exception as error:
            if isinstance(error, StorageUnavailable) and not isinstance(error, RowsLocked):
                raise
            self._has_waited |= isinstance(error, RowsLocked)
            if len(work) > 1:
                logger.warning(
                    "submissions cannot be released together, and are one by one: %s",
                    error,
                    extra={"submissions": [each.number for each in found[:MOST_TOLD]]},
                )
                return await self._release_apart([[each] for each in found], waiting)
            if not self._is_hopeless(found[0], error, waiting):
                return 0
            done = await self._refuse(found[0], error)
        if len(found) == 1 and not done.busy:
            self._troubled.pop(found[0].number, None)
        self._remember(found, done)
        self._tell(work, done)
        waiting.update(order for each in found if each.number in done.deferred and (order := _order(each)) is not None)
        for name in sorted(done.held, key=str)[: MOST_PASSED_OVER - len(self._held)]:
            self._held[name] = time.monotonic() + REST_HELD
        return self._released(found, done)

    def _tell(self, work: Sequence[SubmissionWork], done: ReleasedSubmissions) -> None:
        if self._observer is NO_OBSERVER or done.busy:
            return
        left = {*done.refused, *done.pending, *done.deferred}
        sent = [item.send.message for item in work if isinstance(item.send, SendWork) and item.number not in left]
        tell_stored(self._observer, sent)
        if done.refused:
            self._observer.items_refused("SUBMISSION_REFUSED", len(done.refused))

    def _passed_over(self) -> PassedOver:
        """What is not read."""
        groups = [(topic, group) for topic, group in self._held if group is not None]
        topics = {topic for topic, group in self._held if group is None}
        return PassedOver(self._pending, [*self._behind, *groups], topics)

    async def _release_apart(self, parts: Iterable[Sequence[Submission]], waiting: set[tuple[str, str]]) -> int | None:
        """Releases parts of a part, so that one that cannot be released holds up no other."""
        count = 0
        for part in parts:
            if (ended := await self._release(part, waiting)) is None:
                return None
            count += ended
        return count

    def _without_waiting(self, found: Sequence[Submission], waiting: set[tuple[str, str]]) -> list[Submission]:
        """Without those that rest, or whose message groups wait."""
        now, left = time.monotonic(), []
        for each in found:
            order, trouble = _order(each), self._troubled.get(each.number)
            if order in waiting:
                continue
            if trouble is None or trouble.until <= now:
                left.append(each)
            elif order is not None:
                waiting.add(order)
        return left

    def _is_hopeless(self, submission: Submission, error: Exception, waiting: set[tuple[str, str]]) -> bool:
        """Whether it is refused; otherwise it rests, and its message group waits."""
        now = time.monotonic()
        trouble = self._troubled.get(submission.number) or _Trouble(now)
        if isinstance(error, RowsLocked):
            rest = RESTS_LOCKED[min(trouble.locked, len(RESTS_LOCKED) - 1)]
            trouble.locked += 1
            logger.warning(
                "submission %d needs a row that another session holds, and waits",
                submission.number,
                extra=_about(submission),
            )
        elif isinstance(error, BrokerError):
            return True
        else:
            rest = RESTS_FAILED[min(trouble.failed, len(RESTS_FAILED) - 1)]
            trouble.failed += 1
            if trouble.failed >= TRIES and self._stored_at > trouble.since:
                return True
            logger.warning(
                "submission %d cannot be stored now, and is tried again: %s",
                submission.number,
                error,
                extra=_about(submission),
            )
        trouble.until = now + rest
        if submission.number in self._troubled or len(self._troubled) < MOST_TROUBLED:
            self._troubled[submission.number] = trouble
        if (order := _order(submission)) is not None:
            waiting.add(order)
        return False

    def _remember(self, found: Sequence[Submission], done: ReleasedSubmissions) -> None:
        """Keys that wait for a verdict, and the message groups that wait behind them."""
        for each in found:
            if each.number not in done.pending or isinstance(each.message, BrokerError):
                continue
            key = each.message.topic, each.message.dedup_key or ""
            if len(self._pending) < MOST_PASSED_OVER:
                self._pending[key] = done.pending[each.number]
            order = _order(each)
            if order is not None and key in self._pending and len(self._behind) < MOST_PASSED_OVER:
                self._behind[order] = key

    async def _forget_decided(self) -> None:
        if self._pending:
            still = await self._store.pending_keys(self._pending.values())
            self._pending = {key: own for key, own in self._pending.items() if own in still}
            self._behind = {order: key for order, key in self._behind.items() if key in self._pending}

    async def _refuse(self, item: Submission, error: Exception) -> ReleasedSubmissions:
        logger.error("submission %d cannot be stored", item.number, exc_info=error, extra=_about(item))
        refusal = error if isinstance(error, BrokerError) else StorageRejected(f"The database cannot store it: {error}")
        return await self._store.release_submissions([SubmissionWork(item.number, refusal)])

    def _released(self, found: Sequence[Submission], done: ReleasedSubmissions) -> int | None:
        if done.busy:
            return None
        if done.count:
            self._stored_at = time.monotonic()
        self._wakeups.released(done.end_offsets)
        if done.next_due is not None:
            self._wakeups.on_scheduled(done.next_due)
        self._validator.forget_topics(list(done.gone))
        refused = [each for each in found if each.number in done.refused]
        for each in refused[:MOST_TOLD]:
            text = "submission %d was refused, and is in refused_submission: %s"
            logger.warning(text, each.number, done.refused[each.number], extra=_about(each))
        if more := refused[MOST_TOLD:]:
            numbers = [each.number for each in more[:MOST_TOLD]]
            text = "%d more were refused, and are in refused_submission"
            logger.warning(text, len(more), extra={"submissions": numbers})
        return done.count + len(done.refused)

    async def _work(self, submission: Submission, now: int, missing: dict[str, NotFound | Moved]) -> SubmissionWork:
        """`missing`: topics that do not exist, which are asked for once."""
        message = submission.message
        if isinstance(message, BrokerError):
            return SubmissionWork(submission.number, message)
        if message.topic in missing:
            return SubmissionWork(submission.number, missing[message.topic], message.topic)
        try:
            destination = await self._validator.destination(message, now)
        except InvalidArgument as error:
            return SubmissionWork(submission.number, error)
        except (NotFound, Moved) as error:
            missing[message.topic] = error
            return SubmissionWork(submission.number, error, message.topic)
        except (AttributeError, RecursionError, TypeError, ValueError) as error:
            refusal = InvalidArgument(f"It cannot be a message: {error!r}", field="submission")
            return SubmissionWork(submission.number, refusal)
        return SubmissionWork(submission.number, SendWork(submission.message_id or new_id(), *destination, message))


def _about(submission: Submission) -> dict[str, object]:
    """What a log line about a submission is about: its number, and of its message what is known."""
    about: dict[str, object] = {"submission": submission.number}
    if submission.message_id is not None:
        about["message_id"] = format_id(submission.message_id)
    if not isinstance(submission.message, BrokerError):
        about["topic"] = submission.message.topic
    return about


def _order(submission: Submission) -> tuple[str, str] | None:
    return None if isinstance(submission.message, BrokerError) else order_of(submission.message)


def _apart(found: Sequence[Submission], troubled: Collection[int]) -> Iterator[list[Submission]]:
    """Those that could not be released before by themselves, and those between them together."""
    for is_troubled, part in itertools.groupby(found, key=lambda each: each.number in troubled):
        if is_troubled:
            yield from ([each] for each in part)
        else:
            yield list(part)


def _parts(found: Sequence[Submission]) -> Iterator[list[Submission]]:
    """Parts that are released one after the other.

    Each ends with one that may have to wait for a verdict: later ones of its message group must not overtake it.
    """
    part: list[Submission] = []
    for each in found:
        part.append(each)
        if _order(each) is not None and not isinstance(each.message, BrokerError) and each.message.dedup_key:
            yield part
            part = []
    if part:
        yield part
