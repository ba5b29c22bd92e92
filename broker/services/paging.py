"""Pages of lists."""

from __future__ import annotations

from broker.errors import InvalidArgument

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000


def page_limit(page_size: int) -> int:
    """The number of entries of a page; 0 stands for 100.

    Raises:
        InvalidArgument: more than 1000.
    """
    if page_size > LARGEST_PAGE:
        raise InvalidArgument(f"A page of {page_size}; {LARGEST_PAGE} is the largest.", field="page_size")
    return page_size or DEFAULT_PAGE


def invalid_page_token() -> InvalidArgument:
    """The error for a page token that did not come from this broker."""
    return InvalidArgument("This is no page token; use next_page_token of the page before.", field="page_token")
