"""Calls of many items, each for one cell: taken apart, and their results put together in the order of the items."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from broker.cells import left_behind
from broker.domain.cell import LATELY
from broker.errors import BrokerError, Moved, StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from broker.cells.cell import Cell
    from broker.cells.routing import Router
    from halfmq.v1 import message_pb2

    Call = Callable[[Any, Any], Awaitable[Any]]
    Refuse = Callable[[Any, BrokerError], Any]

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


async def scattered(
    router: Router, request: Any, field: str, cells: Sequence[Cell | BrokerError], call: Call, refuse: Refuse
) -> list[Any]:
    """The results of a request whose items are for several cells, in the order of the items.

    Args:
        router: the cells.
        request: the request.
        field: its field with the items.
        cells: of each item, or why it is refused.
        call: calls the servicers (first argument) with a request (second); the answer has `results`.
        refuse: makes the result of an item from an error.

    Raises:
        BrokerError: all items are for one cell, which refuses the call.
    """
    items = getattr(request, field)
    groups: dict[Cell, list[int]] = {}
    results: list[Any] = [None] * len(items)
    for index, cell in enumerate(cells):
        if isinstance(cell, BrokerError):
            results[index] = refuse(items[index], cell)
        else:
            groups.setdefault(cell, []).append(index)
    if len(groups) == 1 and len(cells) == len(next(iter(groups.values()))):
        (cell,) = groups
        with router.cells.calling(cell) as servicers:
            return list((await call(servicers, request)).results)
    parts = {cell: _part(request, field, indexes, len(items)) for cell, indexes in groups.items()}
    answers = await asyncio.gather(*[_asked(router, cell, part, call) for cell, part in parts.items()])
    for indexes, answer in zip(groups.values(), answers, strict=True):
        for place, index in enumerate(indexes):
            failed = isinstance(answer, BrokerError)
            results[index] = refuse(items[index], answer) if failed else answer.results[place]
    return results


async def sought(
    router: Router,
    request: Any,
    field: str,
    call: Call,
    refuse: Refuse,
    hints: Mapping[int, Cell],
    is_elsewhere: Callable[[Any], bool],
    places: Callable[[Any], Sequence[message_pb2.LogPosition]] = lambda _: (),
) -> list[Any]:
    """The results of a request whose items no list has: each is looked for in one cell after the other.

    What a cell did and does not know the place of is asked further: the next cells only add places.

    Args:
        router: the cells.
        request: the request.
        field: its field with the items.
        call: calls the servicers (first argument) with a request (second); the answer has `results`.
        refuse: makes the result of an item from an error.
        hints: where to begin, by the item's index; home otherwise.
        is_elsewhere: whether an item's error says that a cell does not have it.
        places: of the messages of a result.
    """
    began = router.now()
    items = getattr(request, field)
    # One list for all that begin in the same cell: they may be many.
    turns = {cell: router.cells.in_turn(cell) for cell in {None, *hints.values()}}
    left = {index: turns[hints.get(index)] for index in range(len(items))}
    results: list[Any] = [None] * len(items)
    unavailable: dict[int, Any] = {}
    placeless: set[int] = set()
    for turn in range(len(router.cells.each)):
        indexes = sorted(left)
        if not indexes:
            break
        part = _part(request, field, indexes, len(items))
        try:
            found = await scattered(router, part, field, [left[index][turn] for index in indexes], call, refuse)
        except StorageUnavailable as error:
            # Other cells may have them.
            found = [refuse(items[index], error) for index in indexes]
        for index, result in zip(indexes, found, strict=True):
            if index in placeless:
                left_behind.fill_places(places(results[index]), places(result))
                if not left_behind.lacks_places(places(results[index])):
                    del left[index]
            elif result.error.code == UNAVAILABLE:
                unavailable.setdefault(index, result)
            elif is_elsewhere(result.error):
                results[index] = results[index] or result
            else:
                results[index] = result
                unavailable.pop(index, None)
                if left_behind.lacks_places(places(result)):
                    placeless.add(index)
                else:
                    del left[index]
    # Of leases each cell tells itself whether they may have left it, for a while.
    slow = router.now() - began > LATELY // 2
    missing = [
        index
        for index in left
        if index not in unavailable
        and is_elsewhere(results[index].error)
        and (slow or results[index].error.code == NOT_FOUND)
    ]
    if missing and (why := await _uncertain(router, began)) is not None:
        unavailable |= {index: refuse(items[index], why) for index in missing}
    # One that could not be asked may have it.
    return [unavailable.get(index, result) for index, result in enumerate(results)]


async def _uncertain(router: Router, began: int) -> BrokerError | None:
    """Why what was found nowhere, since a time, may be somewhere."""
    try:
        return Moved("transaction or lease, or what it is for,") if await router.moved_lately(began) else None
    except StorageUnavailable as error:
        # What was found is told.
        return error.as_outcome()


async def _asked(router: Router, cell: Cell, part: Any, call: Call) -> Any:
    try:
        with router.cells.calling(cell) as servicers:
            return await call(servicers, part)
    except BrokerError as error:
        return error.as_outcome()


def _part(request: Any, field: str, indexes: Sequence[int], count: int) -> Any:
    """A request with some of the items."""
    if len(indexes) == count:
        return request
    part = type(request)()
    for descriptor, value in request.ListFields():
        if hasattr(value, "extend"):
            # The items, and what else has one entry for each.
            if len(value) == count:
                getattr(part, descriptor.name).extend([value[index] for index in indexes])
        elif descriptor.message_type is None:
            setattr(part, descriptor.name, value)
        else:
            getattr(part, descriptor.name).CopyFrom(value)
    return part
