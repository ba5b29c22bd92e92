"""`halfmq access`: tokens in their file, and rules in the database."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from broker.config_sources import load_config
from broker.domain.access import Action, rule_of
from broker.errors import BrokerError, ConfigurationError
from broker.storage.adapters.store import Store
from broker.storage.engine.durability import open_database
from broker.storage.migrations import current, newest
from broker.wire.credentials.tokens import hash_of, new_token, with_token
from halfmq_cli.serve import ConfigFile, Database, DatabaseFile, TablePrefix  # noqa: TC001 - typer reads them
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.ports.access import StoredRule

Result = TypeVar("Result")


def token(
    name: Annotated[str, typer.Argument(help="The principal.")],
    tokens: Annotated[Path, typer.Option(help="The file of tokens, which brokers have as access_tokens.")],
    role: Annotated[list[str] | None, typer.Option(help="A role that it has; may be repeated.")] = None,
    tenant: Annotated[str, typer.Option(help="Its tenant [none].")] = "",
    replace: Annotated[bool, typer.Option(help="Drop the tokens that it has. [keep them]")] = False,
) -> None:
    """Make a token and print it; the file gets its hash, and brokers read the file again by themselves.

    A token is changed in three steps: make a further one, give it to the client, and make one more with --replace or
    delete the first hash from the file.
    """
    made = new_token()
    try:
        before = b""
        with suppress(FileNotFoundError):
            before = tokens.read_bytes()
        content = with_token(before, name, hash_of(made), roles=role or (), tenant=tenant, replace=replace)
        _put(tokens, content)
    except OSError as error:
        fail(ConfigurationError(f"The file {str(tokens)!r} cannot be written: {error.strerror}.", field="tokens"))
    except BrokerError as error:
        fail(error)
    sys.stdout.write(made + "\n")


def grant(
    subject: Annotated[str, typer.Argument(help="user:name, user:* for everybody who is known, or role:name.")],
    rights: Annotated[str, typer.Argument(help="Such as produce, or produce,consume.")],
    kind: Annotated[str, typer.Argument(help="topic, group, sink, cluster, or * for all.")],
    pattern: Annotated[str, typer.Argument(help="A name, the beginning of one with * behind it, or *.")],
    deny: Annotated[bool, typer.Option(help="Deny it. [allow it]")] = False,
    source: Annotated[list[str] | None, typer.Option(help="Only from this network; may be repeated.")] = None,
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """Add a rule; all brokers on the database know it within a second."""

    async def add(store: Store) -> list[StoredRule]:
        rule = rule_of(subject, kind, pattern, rights.split(","), allow=not deny, sources=source or ())
        return [await store.grant(rule, "")]

    _print(_with_store(add, database, database_file, table_prefix, config_file))


def rules(
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """List all rules."""

    async def find(store: Store) -> list[StoredRule]:
        return await store.access_rules()

    _print(_with_store(find, database, database_file, table_prefix, config_file))


def revoke(
    numbers: Annotated[list[int], typer.Argument(help="Numbers of rules, as `halfmq access rules` lists them.")],
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """Remove rules, and print those that were there."""

    async def remove(store: Store) -> list[StoredRule]:
        return await store.revoke(numbers)

    _print(_with_store(remove, database, database_file, table_prefix, config_file))


def _with_store(work: Callable[[Store], Awaitable[Result]], *settings: Any) -> Result:
    names = ("database", "database_file", "table_prefix", "config_file")
    arguments = dict(zip(names, settings, strict=True))
    file = arguments.pop("config_file")
    try:
        config = load_config(arguments, file=file)
        opened, _ = open_database(
            config.database, answer_timeout=config.answer_timeout, allow_unsafe=True, table_prefix=config.table_prefix
        )
        if current(opened) != newest():
            raise ConfigurationError("The tables are of another version: run `halfmq migrate`.", field="database")

        async def run() -> Result:
            store = Store(opened, broker_id="halfmq access")
            try:
                await store.start()
                return await work(store)
            finally:
                await store.close()

        try:
            return asyncio.run(run())
        finally:
            opened.close()
    except BrokerError as error:
        fail(error)


def _print(found: list[StoredRule]) -> None:
    table = Table(box=None)
    for column in ("number", "", "subject", "actions", "kind", "pattern", "from"):
        table.add_column(column)
    for each in found:
        rule = each.rule
        table.add_row(
            str(each.rule_id),
            "allow" if rule.allow else "deny",
            rule.subject,
            ", ".join(action.name or "" for action in Action if action in rule.actions),
            rule.kind or "*",
            rule.pattern,
            ", ".join(map(str, rule.sources)) or "anywhere",
        )
    Console(soft_wrap=True).print(table, markup=False, highlight=False)


def _put(file: Path, content: bytes) -> None:
    """Replaces a file as a whole; only its owner may read a new one."""
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        Path(name).chmod(mode)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
