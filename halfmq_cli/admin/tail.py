"""`halfmq admin message tail`: messages of a topic as they come, without a group."""

from __future__ import annotations

import asyncio
import select
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from client_core.errors import BrokerUnavailable
from consumer_sdk.reading import AsyncQueueReader
from halfmq_cli.admin.command import command
from halfmq_cli.admin.completing import complete_topic
from halfmq_cli.admin.ending import say, told
from halfmq_cli.admin.plain import BodyForm, body_line, plain, precise
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.transactions import body_form
from halfmq_cli.admin.values import filter_of, limit_of, place_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from client_core.filters import MessageFilter
    from client_core.positions import StartPosition
    from client_core.stored import StoredMessage
    from halfmq_cli.admin.output import Output

ResultT = TypeVar("ResultT")
_AT_ONCE = 16
"""Messages of one request: bodies may have megabytes."""
_WAIT = 5.0
_LOOK_FOR_QUEUES_EVERY = 3.0
_LOOK_AT_READER_EVERY = 0.5


@command()
def tail(
    session: Session,
    topic: Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topic)],
    start: Annotated[
        str, typer.Option("--from", help="Where to begin: now, earliest, a time, or a duration for so long ago.")
    ] = "now",
    tags: Annotated[str | None, typer.Option(help="Only messages with these tags, such as 'paid || refunded'.")] = None,
    sql: Annotated[str | None, typer.Option(help='Only messages of this condition, such as "amount > 100".')] = None,
    limit: Annotated[int, typer.Option(help="End after so many messages; 0: go on.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for further messages, or end behind the last one.")] = True,
    body: Annotated[str, typer.Option(help="How bodies are shown: auto, text, json or hex.")] = "auto",
) -> None:
    """Print messages of all queues as they become visible, until Ctrl-C; no group and no lease is involved."""
    tailing = Tailing(
        topic,
        "latest" if start == "now" else place_of("--from", start),
        filter_of(tags, sql),
        limit_of("--limit", limit),
        follow=follow,
        form=body_form(body),
        output=session.output,
    )

    async def run() -> None:
        async with AsyncQueueReader(session.connection) as reader:
            await tailing.run(reader)

    # Otherwise Ctrl-C is how it ends.
    with suppress(KeyboardInterrupt):
        asyncio.run(run())


class _Done(Exception):
    """Everything that was asked for is printed, or nobody reads any more."""


@dataclass
class Tailing:
    """Reads all queues of a topic.

    Attributes:
        topic: The topic.
        start: Where to begin.
        filter: Which messages.
        limit: Messages at most; None: any number.
        follow: Whether to wait for further ones.
        form: How bodies are shown.
        output: Where messages are printed.
    """

    topic: str
    start: StartPosition
    filter: MessageFilter | None
    limit: int | None
    follow: bool
    form: BodyForm
    output: Output
    _printed: int = 0
    _queues: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self, reader: AsyncQueueReader) -> None:
        """Reads until there is nothing more to do."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.follow:
                    tasks.create_task(self._watch_reader())
                await self._open(reader, tasks, first=True)
                while self.follow:
                    await asyncio.sleep(_LOOK_FOR_QUEUES_EVERY)
                    await self._patient(partial(self._open, reader, tasks, first=False), waits=True)
        except* _Done:
            pass
        except* Exception as errors:
            # The first one is told; it ended the others.
            raise errors.exceptions[0] from None

    async def _open(self, reader: AsyncQueueReader, tasks: asyncio.TaskGroup, *, first: bool) -> None:
        time = self.start if isinstance(self.start, datetime) else None
        for queue in await reader.queue_offsets(self.topic, time=time):
            if queue.queue in self._queues:
                continue
            # Of a queue that was added since, nothing is to be missed.
            offset = queue.max_offset if first and self.start == "latest" else queue.min_offset
            if first and queue.offset_at_time is not None and time is not None:
                offset = queue.offset_at_time
            work = self._read(reader, queue.queue, offset, queue.topic_id, queue.max_offset)
            self._queues[queue.queue] = tasks.create_task(work)

    async def _read(self, reader: AsyncQueueReader, queue: int, offset: int, topic_id: str, end: int) -> None:
        while self.follow or offset < end:
            call = partial(
                reader.read_queue,
                self.topic,
                queue,
                offset,
                _AT_ONCE,
                wait=_WAIT if self.follow else None,
                filter=self.filter,
                topic_id=topic_id or None,
            )
            found = await self._patient(call, waits=self.follow)
            if found.min_offset > offset:
                say(f"queue {queue}: offsets {offset} to {found.min_offset - 1} were deleted by retention")
            for message in found.messages:
                if not self.follow and message.offset >= end:
                    return
                self._print(message)
            if found.next_offset == offset and not self.follow:
                return
            offset = found.next_offset

    async def _patient(self, call: Callable[[], Awaitable[ResultT]], *, waits: bool) -> ResultT:
        """A call that waits for brokers which are away, once there was one."""
        while True:
            try:
                return await call()
            except BrokerUnavailable as error:
                if not waits:
                    raise
                say(told(error))

    def _print(self, message: StoredMessage) -> None:
        if self._printed == self.limit:
            # Another queue's task printed the last one, and this one is not cancelled yet.
            raise _Done
        if self.output.as_json:
            self.output.json(message)
        else:
            labels = [message.tag or "", *(f"key={key}" for key in message.keys)]
            labels += [f"{name}={value}" for name, value in sorted(message.properties.items())]
            told = " ".join(plain(label) for label in labels if label)
            place = f"{message.queue}/{message.offset}"
            form = "json" if self.form == "auto" else self.form
            parts = (precise(message.stored_at), place, message.message_id, told, body_line(message.body, form))
            self.output.line("  ".join(part for part in parts if part))
        self.output.flush()
        self._printed += 1
        if self._printed == self.limit:
            raise _Done

    async def _watch_reader(self) -> None:
        """Ends when whoever reads the pipe is gone, also while there are no messages."""
        poll = select.poll()
        try:
            poll.register(sys.stdout, 0)
        except (OSError, ValueError):
            # It is no file.
            return
        while not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AT_READER_EVERY)
        raise _Done
