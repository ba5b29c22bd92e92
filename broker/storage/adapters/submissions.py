"""Submissions: read by a look-up, released by background changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access
from broker.storage.log import submissions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.submissions import ReleasedSubmissions, Submission, SubmissionWork
    from broker.storage.engine.session import Session


class Submissions(Access):
    """Implements SubmissionStore."""

    async def submissions(self, after: int | None = None) -> list[Submission]:
        """Committed submissions behind a number (None: all), in their order, as many as are sent at once."""

        def read(session: Session) -> list[Submission]:
            return submissions.waiting(session) if after is None else submissions.waiting(session, after)

        return await self._submitting.run(read, write=False)

    async def release_submissions(self, work: Sequence[SubmissionWork]) -> ReleasedSubmissions:
        """Sends and removes submissions in one database transaction; those that are gone already are left out."""

        def release(session: Session) -> ReleasedSubmissions:
            return submissions.release(session, work, self.clock.now(), self.directory, next(self._rotations))

        return await self._submitting.run(release, write=True)
