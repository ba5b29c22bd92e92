"""`halfmq bench console`: how long the console's pages take where there is much to show."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Annotated

import typer

from broker.errors import BrokerError
from broker.services.operating.cluster import OLD
from halfmq_cli.bench.bare_storage import BareStorage
from halfmq_cli.bench.databases import settle, side_by_side
from halfmq_cli.bench.load import GROUP, QUEUES, TOPIC
from halfmq_cli.bench.long_past import KEYED, SPAN, Past
from halfmq_cli.bench.operators_past import OperatorsPast
from halfmq_cli.bench.options import DatabaseUrl, Json  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess
from halfmq_cli.bench.report import percentiles, print_figures, print_table
from halfmq_cli.serving import fail

PATIENCE = 60
"""Seconds for an answer."""
SIZE = 500
"""Bytes of a body."""
PRODUCER_GROUPS = 20
PAUSE = OLD + 0.5
"""Seconds after which no figures are kept that a page could show at once as if they were new."""
COUNTED = ("/", "/figures", "/brokers")
"""Pages with figures that are counted from the whole database, and kept for a while."""
COUNTING = ("/transactions/resolve?older=1s&resolution=check", f"/groups/{GROUP}/dead-letters/purge")
"""Pages that count all that a decision is about, before it is taken; they take as long as that takes."""
FEW = 3
"""How often these are asked for at most."""
FEWEST_TOPICS = 8


def console(
    database: DatabaseUrl = None,
    pending: Annotated[int, typer.Option(min=1_000, help="Transactions without a verdict.")] = 100_000,
    topics: Annotated[int, typer.Option(min=FEWEST_TOPICS, help="Topics with four queues each.")] = 10_000,
    groups: Annotated[int, typer.Option(min=1, help="Consumer groups.")] = 1_000,
    messages: Annotated[
        int,
        typer.Option(
            min=1_000, help="Messages of one of the topics; as many audit records, and a tenth as many dead letters."
        ),
    ] = 100_000,
    clients: Annotated[int, typer.Option(min=1, help="Connected clients, as five brokers report them.")] = 5_000,
    times: Annotated[int, typer.Option(min=1, help="How often each page is asked for.")] = 20,
    pauses: Annotated[
        int, typer.Option(min=1, help=f"How often pages with counts are asked for after a pause of {PAUSE:g} s.")
    ] = 5,
    most_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds of a page at the median; it fails if one takes longer.")
    ] = 200.0,
    json_output: Json = False,
) -> None:
    """Measure how long each page of the console takes, with many transactions in doubt, topics and groups."""
    past = OperatorsPast(topics, groups, messages // 10, clients, messages)
    try:
        with side_by_side(database, 1) as (urls, shown):
            pages = asyncio.run(_filled(urls[0], pending, messages, past))
            with BrokerProcess(urls[0], "--console-listen=127.0.0.1:0") as broker:
                address = broker.console_endpoint
                figures = {page: _measured(address, page, times) for page in pages}
                for page in COUNTED:
                    figures[f"{page} after {PAUSE:g} s"] = _measured(address, page, pauses, PAUSE)
                counts = {page: _measured(address, page, min(times, FEW)) for page in COUNTING}
    except BrokerError as error:
        fail(error)
    settings = {
        "database": shown,
        "pending": pending,
        "topics": topics,
        "groups": groups,
        "messages": messages,
        "clients": clients,
    }
    if json_output:
        sys.stdout.write(json.dumps({"pages": figures, "counts": counts, **settings}) + "\n")
    else:
        print_table("halfmq bench console", "page", {**figures, **counts})
        print_figures("console", settings, as_json=False)
    slow = [f"{page} took {each['p50_ms']:,.0f} ms" for page, each in figures.items() if each["p50_ms"] > most_ms]
    if slow:
        sys.stderr.write(f"halfmq: longer than {most_ms:g} ms at the median: {'; '.join(slow)}\n")
        raise SystemExit(1)


def _measured(endpoint: str, page: str, times: int, pause: float = 0.0) -> dict[str, float]:
    """Milliseconds until the whole page is there; each by a new connection, `pause` seconds after the one before."""
    taken, size = [], 0
    for _ in range(times):
        time.sleep(pause)
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


async def _filled(url: str, pending: int, messages: int, others: OperatorsPast) -> list[str]:
    """Fills a database; the pages to ask for."""
    bare = BareStorage(url, size=SIZE, queues=QUEUES)
    await bare.start()
    try:
        owners = [await bare.store.producer_group_id(f"service-{number:02}") for number in range(PRODUCER_GROUPS)]
        past = Past.of(messages, pending, SPAN // messages)
        await asyncio.to_thread(past.fill, bare, [bare.group.group_id], owners)
        await others.fill(bare)
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
        "/transactions?state=decided&source=operator",
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
        f"/groups/{GROUP}/dead-letters?tags=nothing",
        f"/messages?topic={TOPIC}",
        f"/messages?topic={TOPIC}&queue=1&offset={messages // 2 // QUEUES}",
        f"/messages?topic={TOPIC}&key={past.key_of(messages // 2 // KEYED * KEYED)}",
        f"/messages/{message}",
        "/clients",
        "/clients?kind=consumers",
        "/clients?group=service-07",
        "/brokers",
        "/audit",
        "/audit?principal=user-07",
        "/audit?call=AdminService/DeleteTopic",
    ]
