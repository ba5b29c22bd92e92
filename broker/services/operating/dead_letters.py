"""Dead letters: listing, redriving and purging them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.limits import MAX_RECEIPTS, check_count
from broker.errors import InvalidArgument
from broker.ports.groups import DeadLetterSearch, Purge, Redriven
from broker.services.auditing import about_to_change
from broker.services.paging import number_token, page_limit, parse_number_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from broker.domain.filters import Filter
    from broker.ports.groups import DeadLetterStore, FoundDeadLetter
    from broker.services.catalog import Catalog
    from broker.services.judges import Judge
    from broker.services.wakeups import Wakeups


class Purging(NamedTuple):
    """Progress of a purge: how many are deleted, or would be, below which offset; whether it was the last step."""

    deleted: int
    end: int
    done: bool


class DeadLetterService:
    """Lists, redrives and purges dead letters."""

    def __init__(self, store: DeadLetterStore, catalog: Catalog, wakeups: Wakeups) -> None:
        """Takes the port of dead letters, the catalog, and the wake-ups."""
        self._store = store
        self._catalog = catalog
        self._wakeups = wakeups

    async def page(
        self, name: str, wanted: Filter | None, page_token: str, page_size: int
    ) -> tuple[list[FoundDeadLetter], str]:
        """A page of a group's dead letters, oldest first, and the token of the next page (empty at the end).

        Raises:
            NotFound: there is no such group, or its dead letter topic was deleted.
        """
        group = await self._catalog.current_group(name)
        search = DeadLetterSearch(group, parse_number_token(page_token), wanted, limit=page_limit(page_size))
        page = await self._store.find_dead_letters(search)
        return page.entries, number_token(page.following)

    async def redrive(
        self,
        name: str,
        wanted: Filter | None,
        offsets: Sequence[int],
        *,
        republish: bool,
        may: Judge | None = None,
    ) -> AsyncIterator[tuple[Redriven, bool]]:
        """Delivers dead letters to their group again; yields the progress after each step, and whether it was the last.

        Args:
            name: the group.
            wanted: only these; None: all.
            offsets: only these; empty: all.
            republish: append a copy where the original is past retention.
            may: the topics that copies may be appended to; None: all.

        Raises:
            NotFound: there is no such group, or its dead letter topic was deleted.
            InvalidArgument: an offset is invalid, or there are too many.
        """
        group = await self._catalog.current_group(name)
        if offsets:
            check_count(len(offsets), MAX_RECEIPTS, "offsets")
            if min(offsets) < 0:
                raise InvalidArgument("An offset cannot be negative.", field="offsets")
        search = DeadLetterSearch(group, min(offsets, default=0), wanted, frozenset(offsets) or None, may_republish=may)
        so_far = Redriven()
        while True:
            step = await self._store.redrive(search, republish=republish)
            so_far.examined += step.examined
            so_far.redriven += step.redriven
            so_far.republished += step.republished
            so_far.left += step.left
            so_far.total = max(so_far.total, step.total)
            if step.redriven:
                self._wakeups.leases_free([group.group_id])
            last = step.following is None or bool(offsets and step.following > max(offsets))
            yield so_far, last
            if last:
                return
            search = replace(search, first=step.following or 0)

    async def purge(self, name: str, *, end: int | None, before: int | None, dry_run: bool) -> AsyncIterator[Purging]:
        """Deletes a group's oldest dead letters; yields its progress after each step.

        Args:
            name: the group.
            end: only those below this offset; None: those that are there now.
            before: only those that became dead letters before this time (microseconds).
            dry_run: only count them.

        Raises:
            NotFound: there is no such group, or its dead letter topic was deleted.
            InvalidArgument: the offset is negative.
        """
        group = await self._catalog.current_group(name)
        if end is not None and end < 0:
            raise InvalidArgument("An offset cannot be negative.", field="before_offset")
        if not dry_run:
            await about_to_change()
        wanted, deleted, done = Purge(group, end, before, dry_run), 0, False
        while not done:
            step = await self._store.purge_dead_letters(wanted)
            deleted, done = deleted + step.deleted, step.done
            # What became a dead letter since is not meant, also where the topic was deleted and created anew.
            wanted = Purge(group, step.end, topic_id=step.topic_id)
            yield Purging(deleted, step.end, done)
