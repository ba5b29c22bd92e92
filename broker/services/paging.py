"""Pages of lists: their size, and the tokens of the next page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=_Named)

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000
_ID_BYTES = 16
_LONGEST_TOKEN = 64


def page_limit(page_size: int) -> int:
    """The number of entries of a page; 0 stands for 100.

    Raises:
        InvalidArgument: more than 1000.
    """
    if page_size > LARGEST_PAGE:
        raise InvalidArgument(f"A page of {page_size}; {LARGEST_PAGE} is the largest.", field="page_size")
    return page_size or DEFAULT_PAGE


async def page_of_names(
    read: Callable[[str, int], Awaitable[list[Named]]], after: str, size: int, may: Callable[[str], bool] | None
) -> tuple[list[Named], str]:
    """A page of things with names, and the token of the next page (empty at the end).

    Args:
        read: reads some, in the order of their names, behind a name.
        after: where to begin.
        size: of the page.
        may: which ones may be seen, by their names; of others nothing is told, not even by the token. None: all.
    """
    seen: list[Named] = []
    most = size + 1 if may is None else LARGEST_PAGE
    while len(seen) <= size:
        found = await read(after, most)
        seen += [each for each in found if may is None or may(each.name)]
        if len(found) < most:
            break
        after = found[-1].name
    return seen[:size], seen[size - 1].name if len(seen) > size else ""


def message_token(topic_id: int, following: tuple[int, int] | None) -> str:
    """The token of a page of messages: the topic, number of the queue, and offset; empty if there is no further page.

    The topic, because another one may have its name by then.
    """
    return "" if following is None else f"{topic_id:x}.{following[0]:x}.{following[1]:x}"


def parse_message_token(token: str) -> tuple[int | None, tuple[int, int]]:
    """The topic of a page of messages (None: the first page), number of the queue and offset at which it begins.

    Raises:
        InvalidArgument: it is no such token.
    """
    if not token:
        return None, (0, 0)
    try:
        topic_id, queue_no, offset = (int(part, 16) for part in _bounded(token).split("."))
        if not (0 <= topic_id < 1 << 62 and 0 <= queue_no < 1 << 31 and 0 <= offset < 1 << 62):
            raise ValueError(token)
    except ValueError:
        raise _invalid() from None
    return topic_id, (queue_no, offset)


def transaction_token(transaction_id: bytes) -> str:
    """The token of a page of transactions: the last one that was listed."""
    return transaction_id.hex()


def parse_transaction_token(token: str) -> bytes:
    """The id of the transaction after which a page begins; empty: the first page.

    Raises:
        InvalidArgument: it is no such token.
    """
    if not token:
        return b""
    try:
        raw = bytes.fromhex(_bounded(token))
        if len(raw) != _ID_BYTES:
            raise ValueError(token)
    except ValueError:
        raise _invalid() from None
    return raw


def decided_token(following: tuple[int, bytes] | None) -> str:
    """The token of a page of decided transactions: time and identity of the last one; empty if there is none."""
    return "" if following is None else f"{following[0]:x}.{following[1].hex()}"


def parse_decided_token(token: str) -> tuple[int, bytes] | None:
    """Time of the verdict and identity of the transaction after which a page begins; None: the first page.

    Raises:
        InvalidArgument: it is no such token.
    """
    if not token:
        return None
    try:
        time, _, identity = _bounded(token).partition(".")
        decided_at, raw = int(time, 16), bytes.fromhex(identity)
        if not 0 <= decided_at < 1 << 62 or len(raw) != _ID_BYTES:
            raise ValueError(token)
    except ValueError:
        raise _invalid() from None
    return decided_at, raw


def number_token(following: int | None) -> str:
    """The token of a page that begins at a number; empty if there is no further page."""
    return "" if following is None else str(following)


def parse_number_token(token: str) -> int:
    """The number at which a page begins.

    Raises:
        InvalidArgument: it is no such token.
    """
    if not token:
        return 0
    try:
        if not (_bounded(token).isascii() and token.isdigit() and int(token) < 1 << 63):
            raise ValueError(token)
    except ValueError:
        raise _invalid() from None
    return int(token)


def _bounded(token: str) -> str:
    # Before it is parsed: a token of megabytes costs more than a page.
    if len(token) > _LONGEST_TOKEN:
        raise ValueError("too long")
    return token


def _invalid() -> InvalidArgument:
    return InvalidArgument("This is no page token; use next_page_token of the page before.", field="page_token")
