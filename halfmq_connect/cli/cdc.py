"""`halfmq cdc`."""

from __future__ import annotations

import signal
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated, NoReturn

import typer

from client_core.errors import ConfigurationError
from halfmq_connect.cdc.config import read_settings
from halfmq_connect.cdc.errors import CdcError, TakenOver, WrongSetting
from halfmq_connect.cdc.outbox import CREATE_OUTBOX
from halfmq_connect.cdc.run import ChangeCapture, check
from halfmq_connect.cli.logs import LogFormat, LogLevel, set_up_log
from halfmq_connect.cli.metrics import MetricsListen, metrics_at, of_cdc

WRONG, STOPPED, TAKEN_OVER = 2, 1, 3


def cdc(
    file: Annotated[Path | None, typer.Argument(help="The subscription, a TOML file.", show_default=False)] = None,
    check_only: Annotated[
        bool, typer.Option("--check", help="Look at the servers, the rights and the tables, and end.")
    ] = False,
    new_snapshot: Annotated[
        bool, typer.Option("--new-snapshot", help="Forget the recorded position, and copy all tables anew.")
    ] = False,
    outbox_sql: Annotated[bool, typer.Option("--outbox-sql", help="Show how to make an outbox, and end.")] = False,
    metrics_listen: MetricsListen = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Publish the changes of MySQL's and MariaDB's tables from their binary log, each exactly once.

    It ends with status 2 when a setting is wrong, with 1 when the log cannot be followed without losing something, and
    with 3 when another process took the subscription over.
    """
    if outbox_sql:
        typer.echo(f"{CREATE_OUTBOX};")
        return
    if file is None:
        _fail("file", "name the subscription's file", WRONG)
    try:
        settings = read_settings(file)
        set_up_log(log_format, log_level, subscription=settings.name)
        if check_only:
            for name in check(settings):
                typer.echo(name)
            return
        capture = ChangeCapture(settings, new_snapshot=new_snapshot)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: capture.stop())
        with metrics_at(metrics_listen, lambda: of_cdc(settings.name, capture)):
            capture.run()
    except ConfigurationError as error:
        _fail(error.field, str(error), WRONG)
    except WrongSetting as error:
        _fail(error.field, str(error), WRONG)
    except TakenOver as error:
        _fail("name", str(error), TAKEN_OVER)
    except CdcError as error:
        _fail("cdc", str(error), STOPPED)


def _fail(field: str, text: str, status: int) -> NoReturn:
    typer.echo(f"halfmq: {field}: {text}", err=True)
    raise typer.Exit(status)
