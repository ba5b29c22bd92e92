"""The options of `halfmq demo`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import grpc
import typer

from broker.domain.limits import check_topic_name
from broker.errors import BrokerError, InvalidArgument
from broker.storage.engine.connection import parse_url
from broker.storage.engine.dialects import is_database_error
from halfmq_cli.demo.children import DemoFailed
from halfmq_cli.demo.order_demo import play_orders
from halfmq_cli.demo.place import prepared
from halfmq_cli.demo.plan import FEWEST_ORDERS
from halfmq_cli.demo.row_demo import RowJob, play_rows
from halfmq_cli.demo.row_source import check
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Coroutine

MOST_ORDERS = 20_000

InputFile = Annotated[
    Path | None,
    typer.Option("--input", help="Send the rows of this file instead: .csv with a header line, or .jsonl."),
]


def demo(
    orders: Annotated[int, typer.Option(min=FEWEST_ORDERS, max=MOST_ORDERS, help="How many orders to place.")] = 400,
    database: Annotated[
        str | None,
        typer.Option(
            help="mysql://user:password@host:3306/name: use that database, for the broker and for the demo's own "
            "tables (demo_..., dropped at the end). Default: SQLite files in a temporary folder.",
            envvar="HALFMQ_DEMO_DATABASE",
        ),
    ] = None,
    business_database: Annotated[
        str | None,
        typer.Option(
            help="With --database of a server: another one, for the demo's own tables, as a shop has it.",
            envvar="HALFMQ_DEMO_BUSINESS_DATABASE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Other seeds make other orders.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep tables, files and logs, and say where they are.")] = False,
    input_file: InputFile = None,
    topic: Annotated[
        str | None, typer.Option(help="With --input: topic for the rows; it is kept. Default: one that is deleted.")
    ] = None,
    rows_per_transaction: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="With --input: rows whose local changes share one database transaction, and whose messages share one "
            "halfmq transaction: all or none. 1 if not given; 100 is several times as fast for a large file.",
        ),
    ] = None,
    kill_producer: Annotated[
        bool, typer.Option(help="With --input: kill the producer halfway (SIGKILL) and start another one.")
    ] = True,
) -> None:
    """Show transactional messages at work, with crashes, and prove that nothing was lost or doubled.

    An order service writes orders to its own tables and sends them as half messages; some of its processes are killed
    between the local commit and the broker's, some answers never come. A consumer builds its own table. In the end
    both tables are compared. Exit status 0: equal, and every order ended as it must; 1: not so; 2: cannot run.

    With --input the same is done with your rows: each becomes a row of the producer's table and a message.
    """
    try:
        if topic is not None:
            check_topic_name(topic, "--topic")
        if input_file is None and (topic is not None or rows_per_transaction is not None):
            raise InvalidArgument("--topic and --rows-per-transaction go with --input FILE.", field="--input")
        rows = check(input_file) if input_file is not None else 0
        if business_database is not None and not _are_servers(database, business_database):
            raise InvalidArgument("both it and --database must be a server's.", field="--business-database")
        with prepared(database, business_database, keep=keep) as place:
            if input_file is None:
                problems = _run(play_orders(place, orders, seed, keep=keep))
            else:
                job = RowJob(input_file, rows, topic, rows_per_transaction or 1, kill_producer)
                problems = _run(play_rows(place, job, keep=keep))
            if keep:
                sys.stdout.write(f"Kept: logs and files in {place.folder}, tables with the prefix {place.prefix}\n")
    except DemoFailed as error:
        sys.stderr.write(f"halfmq demo: {error.message}\n")
        raise SystemExit(1) from None
    except BrokerError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.stderr.write("halfmq demo: interrupted\n")
        raise SystemExit(130) from None
    if problems:
        raise SystemExit(1)


def _are_servers(*urls: str | None) -> bool:
    return all(url is not None and parse_url(url).get_backend_name() != "sqlite" for url in urls)


def _run(story: Coroutine[None, None, list[str]]) -> list[str]:
    async def interruptible() -> list[str]:
        # As with Ctrl-C: all processes are ended before this one.
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await story

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except Exception as error:
        raise _plain(error) from error


def _plain(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        # Several tasks ran concurrently; the first failure is the most informative.
        return _plain(error.exceptions[0])
    if isinstance(error, grpc.aio.AioRpcError):
        return DemoFailed(f"The broker does not answer ({error.code().name}): {error.details()}")
    if is_database_error(error):
        return DemoFailed(f"The database failed: {error}")
    return error
