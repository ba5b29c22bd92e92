"""Submissions: read by a look-up, released by background changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access
from broker.storage.log import deduplication, submissions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.ports.submissions import PassedOver, ReleasedSubmissions, Submission, SubmissionWork
    from broker.storage.engine.session import Session


class Submissions(Access):
    """Implements SubmissionStore."""

    _may_be_large = False
    """Whether the last page had so few submissions that they may have filled it."""

    async def newest_submission(self) -> int | None:
        """The highest number of the committed submissions; None: there are none."""
        return await self._submitting.run(submissions.newest, write=False)

    async def submissions(
        self, until: int, after: int | None = None, passed_over: PassedOver | None = None
    ) -> list[Submission]:
        """Committed submissions up to a number and behind another (None: all), in order, a part of them."""
        first_page = submissions.FIRST_PAGE_OF_LARGE if self._may_be_large else submissions.FIRST_PAGE

        def read(session: Session) -> list[Submission]:
            behind = {} if after is None else {"after": after}
            return submissions.waiting(session, until, **behind, passed_over=passed_over, first_page=first_page)

        found = await self._submitting.run(read, write=False)
        self._may_be_large = 1 <= len(found) <= submissions.FIRST_PAGE_OF_LARGE
        return found

    async def pending_keys(self, keys: Collection[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """Those of the deduplication keys (topic ids and hashes) whose half message has no verdict yet."""
        now = self.clock.now()
        return await self._submitting.run(lambda session: deduplication.still_pending(session, keys, now), write=False)

    async def release_submissions(self, work: Sequence[SubmissionWork], *, wait: bool = True) -> ReleasedSubmissions:
        """Sends and removes submissions in one database transaction; those that are gone already are left out.

        Raises:
            RowsLocked: another session holds rows that are needed.
        """

        def release(session: Session) -> ReleasedSubmissions:
            if not wait:
                submissions.refuse_held_keys(session, work)
            return submissions.release(session, work, self.clock.now(), self.directory, next(self._rotations))

        return await self._submitting.run(release, write=True)
