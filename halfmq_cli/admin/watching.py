"""`--watch`: the same look again and again, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Group
from rich.live import Live
from rich.text import Text

from client_core.errors import BrokerUnavailable
from halfmq_cli.admin.ending import say, told
from halfmq_cli.admin.plain import plain, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from halfmq_cli.admin.output import Listing, Output

ItemT = TypeVar("ItemT")


def show(output: Output, listing: Listing[ItemT], every: float | None) -> None:
    """Shows a listing once, or again and again."""
    if every is None:
        _once(output, listing)
    else:
        repeat(
            output,
            every,
            lambda: list(listing.items()[0]),
            lambda items: output.table_of(listing.columns, items),
            lambda items: output.aligned(listing.columns, items),
            lambda items: items,
        )


def _once(output: Output, listing: Listing[ItemT]) -> None:
    items, has_more = listing.items()
    shown = 0

    def counted() -> Any:
        nonlocal shown
        for item in items:
            shown += 1
            yield item

    if output.as_json:
        for item in counted():
            output.json(item)
    elif output.is_terminal:
        found = list(counted())
        if found:
            output.print(output.table_of(listing.columns, found))
    else:
        output.aligned(listing.columns, counted())
    if not shown:
        say(listing.empty)
    elif has_more():
        say(f"{shown} are shown, and there are more; {listing.more}")


def repeat(
    output: Output,
    every: float,
    look: Callable[[], ItemT],
    render: Callable[[ItemT], RenderableType],
    write: Callable[[ItemT], None],
    record: Callable[[ItemT], object],
) -> None:
    """Looks again and again until Ctrl-C; a broker that does not answer is waited for, but not at the first look.

    Args:
        output: Where it is shown.
        every: Seconds between two looks.
        look: Finds what is shown.
        render: Makes what a terminal shows.
        write: Writes it as lines.
        record: Makes what JSON shows; a list is in a document beside the time.
    """
    try:
        found = look()
        if not output.is_terminal or output.as_json:
            while True:
                if output.as_json:
                    output.json(_document(record(found)))
                else:
                    write(found)
                    output.line("")
                output.flush()
                found = _next(every, look, found)
        with Live(console=output.console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(Group(_heading(every), render(found)), refresh=True)
                found = _next(every, look, found)
    except KeyboardInterrupt:
        return


def _next(every: float, look: Callable[[], ItemT], before: ItemT) -> ItemT:
    time.sleep(every)
    try:
        return look()
    except BrokerUnavailable as error:
        say(plain(told(error)))
        return before


def _heading(every: float) -> Text:
    return Text(f"{time_of(datetime.now(UTC))}, every {every:g}s, Ctrl-C ends", style="dim")


def _document(record: object) -> object:
    looked = {"at": datetime.now(UTC)}
    return {**looked, **record} if isinstance(record, Mapping) else {**looked, "items": record}
