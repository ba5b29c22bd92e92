"""Decompresses and decodes requests; gRPC would do so before any code here could refuse one."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from broker.errors import InvalidArgument
from broker.wire.budget import SMALL, Share
from broker.wire.decoded_size import NOT_WEIGHED, decoded_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from broker.wire.budget import Budget
    from broker.wire.client_limits import Client
    from broker.wire.request_receiver import RequestReceiver

_FIELD = "request"
_AT_ONCE = 1024 * 1024
"""Bytes that are decompressed on the event loop; more are decompressed in a thread."""
_WEIGHED_AT_ONCE = 256 * 1024
"""Bytes of a request whose fields are counted on the event loop; those of larger ones in a thread."""
_GZIP, _DEFLATE = b"\x1f\x8b", 0x78
_EITHER = zlib.MAX_WBITS | 32


async def decoded(raw: bytes, deserialize: Callable[[bytes], Any], share: Share, largest: int) -> Any:
    """Decodes a received request.

    Raises:
        Overloaded: it exceeds the budget.
        InvalidArgument: it cannot be decompressed or decoded, is too large, or has too many items.
    """
    if len(raw) > SMALL:
        share.grow(len(raw))
    if raw[:2] == _GZIP or (raw[:1] == b"\x78" and int.from_bytes(raw[:2], "big") % 31 == 0):
        raw = await _unpacked(raw, share, largest)
    if len(raw) > NOT_WEIGHED:
        share.grow(await _weighed(raw, deserialize))
    try:
        return deserialize(raw)
    except DecodeError:
        raise InvalidArgument("The request cannot be decoded; is it of another protocol?", field=_FIELD) from None


async def _weighed(raw: bytes, deserialize: Any) -> int:
    """Memory that the fields of a request will take; `deserialize` is a method of the request's class."""
    kind = deserialize.__self__.DESCRIPTOR
    return await asyncio.to_thread(decoded_size, raw, kind) if len(raw) > _WEIGHED_AT_ONCE else decoded_size(raw, kind)


async def _unpacked(raw: bytes, share: Share, largest: int) -> bytes:
    """Decompresses a request (gzip or deflate).

    No message begins like gzip: there is no such field type. One may begin like deflate, and is then not decompressed.
    """
    unpacking = zlib.decompressobj(wbits=_EITHER)
    pieces: list[bytes] = []
    size, rest = 0, raw
    try:
        while not unpacking.eof:
            if size >= largest:
                _refuse_size(largest)
            if size < _AT_ONCE:
                piece = unpacking.decompress(rest, _AT_ONCE)
            else:
                piece = await asyncio.to_thread(unpacking.decompress, rest, _AT_ONCE)
            rest = unpacking.unconsumed_tail
            if not piece and not rest and not unpacking.eof:
                raise zlib.error("its end is missing")
            share.grow(len(piece))
            pieces.append(piece)
            size += len(piece)
    except zlib.error as error:
        if raw[0] == _DEFLATE:
            return raw
        raise InvalidArgument(f"The request cannot be unpacked: {error}.", field=_FIELD) from None
    if size > largest:
        _refuse_size(largest)
    return b"".join(pieces)


def _refuse_size(largest: int) -> NoReturn:
    raise InvalidArgument(
        f"The request has more than {largest} bytes when it is unpacked; send it in several.",
        field=_FIELD,
        reason="REQUEST_TOO_LARGE",
    )


async def requests(
    context: Any,
    receiver: RequestReceiver | None,
    deserialize: Callable[[bytes], Any],
    budget: Budget,
    client: Client,
    largest: int,
) -> AsyncIterator[Any]:
    """The requests of a client's stream; each uses its share of both budgets while its reader processes it.

    With a `receiver`, the first one has to arrive within its time limits. For later ones it is not known whether they
    are arriving, or whether the client is idle.
    """
    raw = await (context.read() if receiver is None else receiver.next(context, counted=False))
    while raw is not None and raw is not grpc.aio.EOF:
        with Share(budget) as share:
            share.count_for(client.budget)
            request = await decoded(raw, deserialize, share, largest)
            del raw
            yield request
            del request
        raw = await context.read()
