"""`halfmq bench access`."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.domain.access import rule_of
from broker.errors import BrokerError
from broker.storage.adapters.store import Store
from broker.wire.credentials.tokens import hash_of, new_token, with_token
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.load import GROUP, TOPIC
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.report import print_figures, print_table
from halfmq_cli.bench.scenarios.sides import Side, columns, in_turns
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from broker.domain.access import Rule
    from broker.storage.engine.connection import Database

NAME, ROLE = "bench", "benchmarks"


def access(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Calls under way at a time.")] = 64,
    sdk_in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Messages of the SDK under way.")] = 256,
    messages: Annotated[int, typer.Option(min=1, help="Messages that are consumed in a round, twice.")] = 10_000,
    rules: Annotated[int, typer.Option(min=5, max=100_000, help="Rules that the broker has.")] = 100,
    size: Size = 1024,
    seconds: Annotated[
        float, typer.Option(min=0.5, help="How long to measure each thing in all, on each side.")
    ] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, each with new processes.")] = 20,
    json_output: Json = False,
) -> None:
    """Measure what access costs: a broker with it and one without, in turns, on the same server.

    Clients of the one show a bearer token with each call, and rules allow it; the other one asks nobody. Two processes
    of the same program differ by some percent for as long as they live, so each round has new ones.
    """
    try:
        with ExitStack() as stack:
            urls, shown = stack.enter_context(side_by_side(database, 2))
            tokens = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-"))) / "tokens.toml"
            opened = [stack.enter_context(with_tables(url)) for url in urls]
            load = {"in_flight": in_flight, "size": size}
            sides = [Side(url, each, messages, load, sdk_in_flight) for url, each in zip(urls, opened, strict=True)]
            _guard(sides[1], opened[1], tokens, rules)
            calls = in_turns(sides, seconds, rounds)
    except BrokerError as error:
        fail(error)
    settings = {"database": shown, "rules": rules, "rounds": rounds, "in_flight": in_flight}
    settings |= {"sdk_in_flight": sdk_in_flight, "size_bytes": size}
    if json_output:
        sys.stdout.write(json.dumps({"calls": calls, **settings}) + "\n")
    else:
        print_table("halfmq bench access", "", columns(calls))
        print_figures("access", settings, as_json=False)


def _guard(side: Side, opened: Database, tokens: Path, rules: int) -> None:
    """Has its brokers let in only who shows a token of this file, to what so many rules allow."""
    side.token = new_token()
    tokens.write_bytes(with_token(b"", NAME, hash_of(side.token), roles=[ROLE], tenant="", replace=False))
    asyncio.run(_grant(opened, rules))
    side.options = ["--access", f"--access-tokens={tokens}", "--access-without-tls"]


async def _grant(opened: Database, count: int) -> None:
    store = Store(opened, broker_id="bench")
    await store.start()
    try:
        for rule in _rules(count):
            await store.grant(rule, "")
    finally:
        await store.close()


def _rules(count: int) -> list[Rule]:
    """A few that the clients of the benchmark need, by name and by role, among others for them and for others."""
    needed = [
        rule_of(f"user:{NAME}", "topic", f"{TOPIC}*", ["produce", "consume"]),
        rule_of(f"role:{ROLE}", "group", f"{GROUP}*", ["produce", "check", "consume", "CREATE"]),
        rule_of(f"role:{ROLE}", "topic", f"{TOPIC}-secret", ["all"], allow=False),
        rule_of("user:*", "cluster", "reflection", ["GET"]),
        rule_of("user:*", "topic", "public.*", ["consume"], sources=["10.0.0.0/8", "127.0.0.0/8"]),
    ]
    subjects = (f"role:{ROLE}", *(f"user:service-{number}" for number in range(4)))
    further = [
        rule_of(subject, "topic" if number % 2 else "group", f"team-{number}.*", ["produce", "consume"])
        for number, subject in zip(range(count - len(needed)), itertools.cycle(subjects), strict=False)
    ]
    return [*needed, *further]
