"""`halfmq admin topic`: list, show, create, update, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from client_core.admin import Compression
from client_core.admin.configuration import DEAD_LETTERS
from client_core.spans import span_text
from halfmq_cli.admin.command import command
from halfmq_cli.admin.completing import complete_topic
from halfmq_cli.admin.output import Column, Listing, Page
from halfmq_cli.admin.plain import size, time_of
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.values import choice_of, is_named, limit_of, size_of, span_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from client_core.admin import QueueInfo, TopicInfo

Topic: TypeAlias = Annotated[str, typer.Argument(help="Its name.", autocompletion=complete_topic)]
Retention: TypeAlias = Annotated[str | None, typer.Option(help="How long messages are kept, such as 7d.")]
RetentionBytes: TypeAlias = Annotated[
    str | None, typer.Option(help="Bytes of bodies that are kept at most, such as 10GiB; 0: no limit.")
]
DedupWindow: TypeAlias = Annotated[
    str | None, typer.Option(help="How long other messages with the same dedup_key are rejected, such as 1d.")
]
Compressed: TypeAlias = Annotated[str | None, typer.Option(help="How bodies are stored: none or zstd.")]


def columns() -> list[Column[TopicInfo]]:
    """The columns of a list of topics."""
    return [
        Column("topic", lambda topic: topic.name),
        Column("queues", lambda topic: str(topic.queues), right=True),
        Column("retention", lambda topic: span_text(topic.retention)),
        Column("bytes", lambda topic: size(topic.retention_bytes) if topic.retention_bytes else "-", right=True),
        Column("dedup window", lambda topic: span_text(topic.dedup_window)),
        Column("priorities", lambda topic: str(topic.priority_levels), right=True),
        Column("compression", lambda topic: topic.compression.name.lower()),
        Column("created", lambda topic: time_of(topic.created_at)),
    ]


QUEUES: list[Column[QueueInfo]] = [
    Column("queue", lambda queue: str(queue.queue), right=True),
    Column("first", lambda queue: str(queue.min_offset), right=True),
    Column("end", lambda queue: str(queue.max_offset), right=True),
    Column("messages", lambda queue: str(queue.messages), right=True),
    Column("stored", lambda queue: size(queue.stored_bytes), right=True),
    Column("priority", lambda queue: str(queue.priority), right=True),
]


@command(watches=True)
def list_topics(
    session: Session,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Those of dead letters, too.")] = False,
    name: Annotated[str | None, typer.Option(help="Only those of such a name: 'orders-*'.")] = None,
    limit: Annotated[int, typer.Option(help="Topics at most; 0: all.")] = 0,
) -> None:
    """List topics with their settings."""

    def find() -> Iterable[TopicInfo]:
        for each in session.admin.list_topics():
            if (dead_letters or not each.name.startswith(DEAD_LETTERS)) and is_named(each.name, name):
                yield each

    nothing = "there are no topics; `halfmq admin topic create` makes one" if name is None else "no topic matches"
    session.show(Listing(columns(), find, nothing, limit=limit_of("--limit", limit)))


@command()
def show_topic(session: Session, topic: Topic) -> None:
    """Show a topic: settings, and each queue with its offsets and bytes."""
    found, queues = session.admin.get_topic(topic), session.admin.topic_queues(topic)
    if session.output.as_json:
        session.output.json({**_fields(found), "queue_list": queues})
        return
    page = Page()
    page.title(f"topic {found.name}")
    page.fields([*((column.title, column.cell(found)) for column in columns()[1:]), ("id", found.topic_id)])
    page.title(f"queues ({len(queues)})")
    page.table(QUEUES, queues)
    session.output.page(page)


@command()
def create_topic(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Its name.")],
    queues: Annotated[int | None, typer.Option(help="Number of queues [the broker's default].")] = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    dedup_window: DedupWindow = None,
    priorities: Annotated[int | None, typer.Option(help="Number of priorities, 10 at most [1].")] = None,
    compression: Compressed = None,
    cell: Annotated[str, typer.Option(help="Cell to create it in; *: the one with the fewest bytes [home].")] = "",
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Take one that exists, as it is.")] = False,
) -> None:
    """Create a topic."""
    _one(
        session,
        session.admin.create_topic(
            topic,
            queues=queues,
            retention=span_of("--retention", retention),
            retention_bytes=size_of("--retention-bytes", retention_bytes) or 0,
            dedup_window=span_of("--dedup-window", dedup_window),
            priority_levels=priorities,
            compression=choice_of("--compression", compression, Compression),
            cell=cell,
            exist_ok=exist_ok,
        ),
    )


@command()
def update_topic(
    session: Session,
    topic: Topic,
    queues: Annotated[int | None, typer.Option(help="Number of queues; it can only grow.")] = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    dedup_window: DedupWindow = None,
    compression: Compressed = None,
) -> None:
    """Change a topic while it is in use; what is not given stays as it is."""
    _one(
        session,
        session.admin.update_topic(
            topic,
            queues=queues,
            retention=span_of("--retention", retention),
            retention_bytes=size_of("--retention-bytes", retention_bytes),
            dedup_window=span_of("--dedup-window", dedup_window),
            compression=choice_of("--compression", compression, Compression),
        ),
    )


@command()
def delete_topic(
    session: Session,
    topic: Topic,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="It may be gone already.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with its messages; refused while half messages, scheduled ones or leases refer to it."""
    session.ask(f"delete topic {topic} and all of its messages", yes=yes)
    session.admin.delete_topic(topic, missing_ok=missing_ok)
    session.done({"topic": topic, "deleted": True}, f"deleted topic {topic}")


def _one(session: Session, topic: TopicInfo) -> None:
    if session.output.as_json:
        session.output.json(topic)
    else:
        session.show(Listing(columns(), lambda: [topic], ""))


def _fields(topic: TopicInfo) -> dict[str, object]:
    return {name: getattr(topic, name) for name in topic.__dataclass_fields__}
