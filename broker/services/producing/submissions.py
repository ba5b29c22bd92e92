"""Submissions: validated as messages of a producer are, then released."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.errors import BrokerError, InvalidArgument, NotFound, StorageRejected, StorageUnavailable
from broker.ports.log import SendWork
from broker.ports.submissions import SubmissionWork
from broker.services.ids import new_id

if TYPE_CHECKING:
    from broker.ports.submissions import ReleasedSubmissions, Submission, SubmissionStore
    from broker.services.producing.validation import MessageValidator
    from broker.services.wakeups import Wakeups

logger = logging.getLogger("halfmq.submissions")


class SubmissionService:
    """Turns committed submissions into messages."""

    def __init__(self, store: SubmissionStore, validator: MessageValidator, wakeups: Wakeups) -> None:
        """Takes the store, the validator, and the wake-ups."""
        self._store = store
        self._validator = validator
        self._wakeups = wakeups

    async def release(self) -> int | None:
        """Releases some; how many were dealt with. None: another broker is at it."""
        found = await self._store.submissions()
        if not found:
            return 0
        now = self._validator.now()
        work = [await self._work(each, now) for each in found]
        try:
            return self._released(await self._store.release_submissions(work))
        except StorageUnavailable:
            raise
        except Exception as error:
            if len(work) > 1:
                logger.warning("submissions cannot be released together, and are one by one: %s", error)
            return await self._release_each(work)

    async def _release_each(self, work: list[SubmissionWork]) -> int | None:
        """Releases them singly, so that one that the database cannot store holds up no other."""
        count = 0
        for item in work:
            try:
                done = self._released(await self._store.release_submissions([item]))
            except StorageUnavailable:
                raise
            except Exception as error:
                refusal = StorageRejected(f"The database cannot store it: {error}")
                refused = [SubmissionWork(item.number, refusal)]
                done = self._released(await self._store.release_submissions(refused))
            if done is None:
                return None
            count += done
        return count

    def _released(self, done: ReleasedSubmissions) -> int | None:
        if done.busy:
            return None
        self._wakeups.released(done.end_offsets)
        if done.next_due is not None:
            self._wakeups.on_scheduled(done.next_due)
        self._validator.forget_topics(list(done.gone))
        for number, cause in done.refused.items():
            logger.warning("submission %d was refused, and is in refused_submission: %s", number, cause)
        return done.count + len(done.refused)

    async def _work(self, submission: Submission, now: int) -> SubmissionWork:
        message = submission.message
        if isinstance(message, BrokerError):
            return SubmissionWork(submission.number, message)
        try:
            destination = await self._validator.destination(message, now)
        except (InvalidArgument, NotFound) as error:
            return SubmissionWork(submission.number, error)
        return SubmissionWork(submission.number, SendWork(submission.message_id or new_id(), *destination, message))
