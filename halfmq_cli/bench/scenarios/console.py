"""`halfmq bench console`: how long the console's pages take where there is much to show."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from http import HTTPStatus
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.bare_storage import FOR_EVER, BareStorage
from halfmq_cli.bench.databases import settle, side_by_side
from halfmq_cli.bench.load import GROUP, QUEUES, TOPIC
from halfmq_cli.bench.long_past import KEYED, SPAN, Past
from halfmq_cli.bench.options import DatabaseUrl, Json  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess
from halfmq_cli.bench.report import percentiles, print_figures, print_table
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

PATIENCE = 60
"""Seconds for an answer."""
SIZE = 500
"""Bytes of a body."""
PRODUCER_GROUPS = 20
QUEUES_READ = 8
"""In which a consumer group has progress."""
CHUNK = 5_000
"""Rows of one INSERT."""


def console(
    database: DatabaseUrl = None,
    pending: Annotated[int, typer.Option(min=1_000, help="Transactions without a verdict.")] = 100_000,
    topics: Annotated[int, typer.Option(min=QUEUES_READ, help="Topics with four queues each.")] = 10_000,
    groups: Annotated[int, typer.Option(min=1, help="Consumer groups.")] = 1_000,
    messages: Annotated[int, typer.Option(min=1_000, help="Messages of one of the topics.")] = 100_000,
    times: Annotated[int, typer.Option(min=1, help="How often each page is asked for.")] = 20,
    json_output: Json = False,
) -> None:
    """Measure how long each page of the console takes, with many transactions in doubt, topics and groups."""
    try:
        with side_by_side(database, 1) as (urls, shown):
            pages = asyncio.run(_filled(urls[0], pending, topics, groups, messages))
            with BrokerProcess(urls[0], "--console-listen=127.0.0.1:0") as broker:
                figures = {page: _measured(broker.console_endpoint, page, times) for page in pages}
    except BrokerError as error:
        fail(error)
    settings = {"database": shown, "pending": pending, "topics": topics, "groups": groups, "messages": messages}
    if json_output:
        sys.stdout.write(json.dumps({"pages": figures, **settings}) + "\n")
        return
    print_table("halfmq bench console", "page", figures)
    print_figures("console", settings, as_json=False)


def _measured(endpoint: str, page: str, times: int) -> dict[str, float]:
    """Milliseconds until the whole page is there; each by a new connection."""
    taken, size = [], 0
    for _ in range(times):
        began = time.perf_counter()
        connection = HTTPConnection(endpoint, timeout=PATIENCE)
        try:
            connection.request("GET", page)
            answer = connection.getresponse()
            size = len(answer.read())
        finally:
            connection.close()
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"{page} was answered with {answer.status}")
        taken.append(time.perf_counter() - began)
    return {**percentiles("", [each * 1000 for each in taken]), "bytes": size}


async def _filled(url: str, pending: int, topics: int, groups: int, messages: int) -> list[str]:
    """Fills a database; the pages to ask for."""
    bare = BareStorage(url, size=SIZE, queues=QUEUES)
    await bare.start()
    try:
        owners = [await bare.store.producer_group_id(f"service-{number:02}") for number in range(PRODUCER_GROUPS)]
        past = Past.of(messages, pending, SPAN // messages)
        await asyncio.to_thread(past.fill, bare, [bare.group.group_id], owners)
        await asyncio.to_thread(_add_names, bare, topics, groups)
        await asyncio.to_thread(settle, bare.database)
        session = bare.database.session()
        ((in_doubt,),) = session.fetch("SELECT transaction_id FROM half_message ORDER BY transaction_id DESC LIMIT 1")
        bare.database.release(session)
    finally:
        await bare.close()
    message = uuid.UUID(bytes=past.id_of(messages // 2))
    return [
        "/",
        "/figures",
        "/transactions",
        "/transactions?state=parked",
        "/transactions?state=decided",
        "/transactions?group=service-07&older=6h",
        f"/transactions?topic={TOPIC}",
        f"/transactions/{uuid.UUID(bytes=bytes(in_doubt))}",
        f"/transactions/{message}",
        "/topics",
        "/topics?from=topic-05",
        f"/topics/{TOPIC}",
        "/groups",
        f"/groups/{GROUP}",
        f"/groups/{GROUP}/dead-letters",
        f"/messages?topic={TOPIC}",
        f"/messages?topic={TOPIC}&key={past.key_of(messages // 2 // KEYED * KEYED)}",
        f"/messages/{message}",
        "/clients",
        "/brokers",
        "/audit",
    ]


def _add_names(bare: BareStorage, topics: int, groups: int) -> None:
    session = bare.database.session()
    now = bare.store.clock.now()
    names = [(f"topic-{number:05}", QUEUES, FOR_EVER, now) for number in range(topics)]
    _insert(session, "topic", "name, queue_count, retention, created_at", names)
    ids = [row[0] for row in session.fetch("SELECT topic_id FROM topic WHERE name LIKE 'topic-%'")]
    queues = [(topic_id, number, 0, 0) for topic_id in ids for number in range(QUEUES)]
    _insert(session, "queue", "topic_id, queue_no, next_offset, min_offset", queues)
    named = [(f"group-{number:05}", 16, now) for number in range(groups)]
    _insert(session, "consumer_group", "name, max_attempts, created_at", named)
    readers = [row[0] for row in session.fetch("SELECT group_id FROM consumer_group WHERE name LIKE 'group-%'")]
    read = [row[0] for row in session.fetch("SELECT queue_id FROM queue ORDER BY queue_id LIMIT 4096")]
    progress = [
        (group_id, read[(place * QUEUES_READ + number) % len(read)], 0)
        for place, group_id in enumerate(readers)
        for number in range(QUEUES_READ)
    ]
    _insert(session, "group_progress", "group_id, queue_id, next_offset", progress)
    session.rollback()
    bare.database.release(session)


def _insert(session: Session, table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
    for first in range(0, len(rows), CHUNK):
        session.begin()
        session.insert(table, columns, rows[first : first + CHUNK])
        session.commit()
