"""`halfmq bench delay`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.accounting import Unaccounted, check_arrived
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.load import MARK, mark_of
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import percentiles, print_figures
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database


def delay(
    database: DatabaseUrl = None,
    messages: Annotated[int, typer.Option(min=1, help="Messages that are due in a round.")] = 10_000,
    within: Annotated[float, typer.Option(min=0.0, help="Seconds between the first and the last due time.")] = 1.0,
    lead: Annotated[float, typer.Option(min=0.1, help="Seconds to take them all in before the first is due.")] = 10.0,
    size: Size = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="How often.")] = 3,
    json_output: Json = False,
) -> None:
    """Measure how late delayed messages are when many are due at the same time.

    Broker, producer and consumer are separate processes. Lateness counts from the due time to the message's place in
    the log, and to the consumer.
    """
    released: list[float] = []
    received: list[float] = []
    again = 0
    try:
        with ExitStack() as stack:
            (url,), shown = stack.enter_context(side_by_side(database, 1))
            opened = stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url))
            options = {"size": size, "within": within, "lead": lead}
            producer = stack.enter_context(Client("scheduling producer", broker.endpoint, **options))
            consumer = stack.enter_context(Client("timed consumer", broker.endpoint))
            for number in range(rounds):
                numbers = range(number * messages, (number + 1) * messages)
                consumer.tell(messages)
                sent = producer.ask(messages)
                if sent["spare_s"] < 0:
                    raise Unaccounted(
                        f"Taking the messages in took {lead - sent['spare_s']:.1f} s; give them more with --lead."
                    )
                due = dict(zip(numbers, sent["due_us"], strict=True))
                arrived = consumer.hear()
                again += check_arrived(arrived["numbers"], numbers)
                released += [(at - due[n]) / 1e3 for n, at in _stored(opened).items() if n in due]
                moments = zip(arrived["numbers"], arrived["arrived_ns"], strict=True)
                received += [(at / 1e3 - sent["clock_us"] - due[n]) / 1e3 for n, at in moments]
    except BrokerError as error:
        fail(error)
    if len(released) != rounds * messages or min(released) < 0:
        fail(Unaccounted("Some messages were released before their time, or never."))
    figures: dict[str, Any] = {
        **percentiles("released_", released),
        **percentiles("received_", received),
        "messages_per_s": round(messages / within, 1) if within else None,
        "messages": messages,
        "delivered_again": again,
        "within_s": within,
        "rounds": rounds,
        "database": shown,
        "size_bytes": size,
    }
    print_figures("delay", figures, as_json=json_output)


def _stored(database: Database) -> dict[int, int]:
    """When each message was stored in the log (microseconds), by its number."""
    session = database.session()
    found = session.fetch("SELECT SUBSTR(body, 1, ?), stored_at FROM message", (MARK,))
    session.rollback()
    database.release(session)
    return {mark_of(mark): stored_at for mark, stored_at in found}
