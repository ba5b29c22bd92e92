"""Checks of transactions in all cells, by the streams that producers have at home."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.cell import HOME_NUMBER
from broker.errors import BrokerError, NotFound, StorageUnavailable
from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.ports.checks import CheckAnswer, ClaimedCheck
    from broker.services.catalog import Catalog
    from broker.services.producing.check_sessions import CheckSessions
    from broker.services.producing.checks import Answers
    from broker.services.producing.transactions import PlacedOutcome

MOST_REMEMBERED = 200_000
REFRESH = 2.0
"""Seconds after which a cell knows that a producer of one of its groups has come."""


class SessionsOfCell:
    """The producers' streams as the checker of a cell sees them: by the cell's own numbers of producer groups."""

    def __init__(self, sessions: CheckSessions, home: Catalog, own: Catalog, sent: Callable[[bytes], None]) -> None:
        """Takes the streams, the names at home and in the cell, and who is told of each check before it is sent."""
        self._sessions = sessions
        self._home = home
        self._own = own
        self._sent = sent
        self._home_numbers: dict[int, int] = {}
        self.on_open: Callable[[], None] = lambda: None

    async def refresh(self) -> None:
        """Learns the cell's numbers of the groups that have a producer here."""
        connected = self._sessions.group_ids()
        if set(connected) <= set(self._home_numbers.values()):
            return
        names = await self._home.numbered_producer_groups.names()
        wanted = {names[number]: number for number in connected if number in names}
        known = await self._own.numbered_producer_groups.names(again=True)
        before = len(self._home_numbers)
        self._home_numbers = {own: wanted[name] for own, name in known.items() if name in wanted}
        if len(self._home_numbers) > before:
            self.on_open()

    def own_numbers(self, home_numbers: frozenset[int]) -> frozenset[int]:
        """The cell's numbers of groups."""
        return frozenset(own for own, number in self._home_numbers.items() if number in home_numbers)

    def group_ids(self) -> list[int]:
        """Groups with a producer at this broker."""
        there = set(self._sessions.group_ids())
        return [own for own, number in self._home_numbers.items() if number in there]

    def is_silent(self, group_id: int) -> bool:
        """Whether all local producers of a group leave checks unanswered."""
        return self._sessions.is_silent(self._home_numbers.get(group_id, -1))

    async def send(self, check: ClaimedCheck) -> str | None:
        """Sends a check to the group's next producer; returns its client id, None if none could be reached."""
        number = self._home_numbers.get(check.producer_group_id)
        if number is None:
            return None
        self._sent(check.transaction_id)
        return await self._sessions.send(replace(check, producer_group_id=number))


class ProducerWatcher(Loop):
    """Lets a cell's checker know of the producers that have come."""

    name = "producer watcher"

    def __init__(self, sessions: SessionsOfCell) -> None:
        """Takes the streams as the cell sees them."""
        super().__init__(REFRESH)
        self._sessions = sessions

    async def run_once(self) -> None:
        """One look."""
        await self._sessions.refresh()


class RoutedAnswers:
    """Takes producers' answers to the cells of their transactions."""

    def __init__(self, home: Answers) -> None:
        """Takes that of home."""
        self._home = home
        self._cells: dict[int, tuple[Answers, SessionsOfCell]] = {}
        self._asked: dict[bytes, int] = {}

    def told_by(self, number: int) -> Callable[[bytes], None]:
        """What a cell's streams tell of each check before it is sent."""

        def sent(transaction_id: bytes) -> None:
            self._asked.pop(transaction_id, None)
            self._asked[transaction_id] = number
            if len(self._asked) > MOST_REMEMBERED:
                del self._asked[next(iter(self._asked))]

        return sent

    def add(self, number: int, answers: Answers, sessions: SessionsOfCell) -> None:
        """Adds a cell."""
        self._cells[number] = answers, sessions

    def remove(self, number: int) -> None:
        """Removes a cell that could not be opened after all."""
        self._cells.pop(number, None)

    async def take(
        self, transaction_id: bytes, answer: CheckAnswer, check_number: int | None = None
    ) -> PlacedOutcome | BrokerError | None:
        """Records an answer, and decides the transaction if it is a verdict: in the cell that asked, or has it."""
        asked = self._asked.pop(transaction_id, HOME_NUMBER)
        outcome: PlacedOutcome | BrokerError | None = None
        for number in sorted([HOME_NUMBER, *self._cells], key=lambda each: each != asked):
            try:
                outcome = await self._take(number, transaction_id, answer, check_number)
            except NotFound as error:
                outcome = error.as_outcome()
            if not isinstance(outcome, NotFound):
                return outcome
        return outcome

    async def _take(
        self, number: int, transaction_id: bytes, answer: CheckAnswer, check_number: int | None
    ) -> PlacedOutcome | BrokerError | None:
        if number == HOME_NUMBER:
            return await self._home.take(transaction_id, answer, check_number)
        answers, sessions = self._cells[number]
        groups = answer.groups if answer.groups is None else sessions.own_numbers(answer.groups)
        try:
            return await answers.take(transaction_id, replace(answer, groups=groups), check_number)
        except StorageUnavailable as error:
            # It is checked again.
            return error.as_outcome()
