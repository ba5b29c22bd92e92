"""What a command works with: the brokers, standard output, and questions."""

from __future__ import annotations

import getpass
import os
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from client_core.admin import Admin
from halfmq_cli.admin.asking import ask
from halfmq_cli.admin.connecting import connections_of
from halfmq_cli.admin.plain import plain
from halfmq_cli.admin.watching import repeat, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.connection import Connection
    from halfmq_cli.admin.context_file import Context
    from halfmq_cli.admin.output import Listing, Output, Page

ItemT = TypeVar("ItemT")


class Session:
    """The brokers, and where the command writes."""

    def __init__(
        self, settings: Context, timeout: float, output: Output, every: float | None, addressed: str = ""
    ) -> None:
        """Reads the settings; nothing is connected before it is needed.

        Args:
            settings: Endpoints and credentials.
            timeout: Seconds to try for until a broker answers.
            output: Where it is shown.
            every: Seconds between two looks of --watch; None: one look.
            addressed: The options that say which brokers these are, for commands that are shown.
        """
        self.output = output
        self.every = every
        self._settings = settings
        self._addressed = addressed
        self._timeout = timeout
        self._opened: list[Admin] = []

    @cached_property
    def _connections(self) -> tuple[Connection, Connection]:
        return connections_of(self._settings, self._timeout)

    def command(self, rest: str) -> str:
        """A command to copy, for the same brokers."""
        return f"halfmq admin {rest}{self._addressed}"

    @property
    def connection(self) -> Connection:
        """How to reach brokers where clients do."""
        return self._connections[0]

    @cached_property
    def admin(self) -> Admin:
        """Calls of AdminService."""
        return self._open(self._connections[1])

    @cached_property
    def clients_side(self) -> Admin:
        """Calls that are answered where clients are: about messages, and about a transaction's evidence."""
        clients, operators = self._connections
        return self.admin if clients is operators else self._open(clients)

    @property
    def operator(self) -> str:
        """The name to record with decisions."""
        if self._settings.operator:
            return self._settings.operator
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            # In a container the user may have no name.
            return f"uid {os.getuid()}"

    def show(self, listing: Listing[ItemT]) -> None:
        """Shows a list as the options say."""
        show(self.output, listing, self.every)

    def show_page(
        self,
        look: Callable[[], ItemT],
        page: Callable[[ItemT], Page],
        record: Callable[[ItemT], object] = lambda found: found,
    ) -> None:
        """Shows one thing as the options say: as a page, or as an object of JSON.

        Args:
            look: Finds it.
            page: Makes the page.
            record: Makes what JSON shows.
        """
        if self.every is not None:
            repeat(
                self.output,
                self.every,
                look,
                lambda found: page(found).rendered(self.output.console.width),
                lambda found: self.output.page(page(found)),
                record,
            )
        elif self.output.as_json:
            self.output.json(record(look()))
        else:
            self.output.page(page(look()))

    def done(self, record: object, text: str) -> None:
        """Tells what was done: as JSON, or in a line."""
        if self.output.as_json:
            self.output.json(record)
        else:
            self.output.line(plain(text))

    def ask(self, question: str, *, yes: bool) -> None:
        """Goes on if the answer is yes; see asking."""
        ask(question, yes=yes)

    def close(self) -> None:
        """Closes connections."""
        for opened in self._opened:
            opened.close()

    def _open(self, connection: Connection) -> Admin:
        self._opened.append(Admin(connection))
        return self._opened[-1]
