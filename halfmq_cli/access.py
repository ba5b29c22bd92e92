"""`halfmq access`: tokens in their file; rules, quotas and records of who did what in the database."""

from __future__ import annotations

import asyncio
import fcntl
import getpass
import json
import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from broker.config_sources import load_config
from broker.domain.access import Action, rule_of
from broker.domain.tenancy import Quota
from broker.errors import BrokerError, ConfigurationError
from broker.ports.audit import AuditOutcome, AuditRecord, AuditSearch
from broker.storage.adapters.store import Store
from broker.storage.engine.durability import open_database
from broker.storage.migrations import current, newest
from broker.wire.credentials.tokens import hash_of, new_token, with_token
from halfmq_cli.serve import ConfigFile, Database, DatabaseFile, TablePrefix  # noqa: TC001 - typer reads them
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from broker.ports.access import StoredQuota, StoredRule
    from broker.ports.audit import StoredAuditRecord

Result = TypeVar("Result")
PAGE = 1000
MOST_HOURS = 1_000_000
PIPED = 500
"""Characters of a line that no terminal shows."""


def token(
    name: Annotated[str, typer.Argument(help="The principal.")],
    tokens: Annotated[Path, typer.Option(help="The file of tokens, which brokers have as access_tokens.")],
    role: Annotated[list[str] | None, typer.Option(help="A role that it has; may be repeated.")] = None,
    tenant: Annotated[str, typer.Option(help="Its tenant [none].")] = "",
    replace: Annotated[bool, typer.Option(help="Refuse the tokens that it has from now on. [keep them]")] = False,
) -> None:
    """Make a token and print it; the file gets its hash, and brokers read the file again by themselves.

    A token is changed in three steps: make a further one, give it to the client, and delete the first hash from the
    file. With --replace the client is refused until it has the new one: that is for a token that was lost or leaked.
    """
    made = new_token()
    try:
        # Of a link, what it leads to.
        file = tokens.resolve()
        with _alone(file.parent):
            before = b""
            with suppress(FileNotFoundError):
                before = file.read_bytes()
            content = with_token(before, name, hash_of(made), roles=role or (), tenant=tenant, replace=replace)
            _put(file, content)
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
        await _record(store, "grant", f"access {subject}", " ".join([rights, kind, pattern, "deny" if deny else ""]))
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
    """Remove rules, and print those that were there; with a number that no rule has it ends with 1."""

    async def remove(store: Store) -> list[StoredRule]:
        await _record(store, "revoke", "access", " ".join(map(str, numbers)))
        return await store.revoke(numbers)

    removed = _with_store(remove, database, database_file, table_prefix, config_file)
    _print(removed)
    missing = sorted(set(numbers) - {each.rule_id for each in removed})
    if missing:
        sys.stderr.write(
            f"halfmq: no rule has the number {', '.join(map(str, missing))}; `halfmq access rules` lists them\n"
        )
        raise SystemExit(1)


def quota(
    tenant: Annotated[str, typer.Argument(help="The tenant, or * for each one without a quota of its own.")],
    messages_per_second: Annotated[int, typer.Option(help="That it may send, to each broker; 0: any number.")] = 0,
    bytes_per_second: Annotated[int, typer.Option(help="Of its requests that send, to each broker; 0: any.")] = 0,
    topics: Annotated[int, typer.Option(help="Topics; 0: any number.")] = 0,
    groups: Annotated[int, typer.Option(help="Groups of consumers and of producers; 0: any number.")] = 0,
    retained_bytes: Annotated[int, typer.Option(help="Of the bodies in its topics; 0: any.")] = 0,
    streams: Annotated[int, typer.Option(help="Under way at each broker; 0: any number.")] = 0,
    pending_transactions: Annotated[int, typer.Option(help="Without a verdict; 0: any number.")] = 0,
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """Set what a tenant may use; without any limit its quota is removed. Prints all quotas."""
    wanted = Quota(
        tenant, messages_per_second, bytes_per_second, topics, groups, retained_bytes, streams, pending_transactions
    )

    async def change(store: Store) -> list[StoredQuota]:
        wanted.check()
        await _record(store, "quota", f"tenant {tenant}", " ".join(map(str, wanted.limits)))
        await store.set_quota(wanted, "")
        return await store.quotas()

    found = _with_store(change, database, database_file, table_prefix, config_file)
    names = [field.name for field in fields(Quota)]
    _print_table(
        [name.replace("_", " ") for name in names],
        [[str(getattr(each.quota, name)) for name in names] for each in found],
    )


def audit(
    principal: Annotated[str, typer.Option(help="Only those of this one [all].")] = "",
    call: Annotated[str, typer.Option(help="Only those of this call, such as AdminService/DeleteTopic [all].")] = "",
    resource: Annotated[str, typer.Option(help="Only those about this, such as 'topic orders' [all].")] = "",
    hours: Annotated[
        float | None, typer.Option(min=0, max=MOST_HOURS, help="Only those of so many hours until now [all].")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="A line of JSON for each record.")] = False,
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """Print the records of who did what, refusals included, the oldest first."""

    async def show(store: Store) -> None:
        since = None if hours is None else store.clock.now() - int(hours * 3600e6)
        search = AuditSearch(principal, call, resource, since=since, oldest_first=True, limit=PAGE)
        following: int | None = 0
        while following is not None:
            page = await store.audit_records(replace(search, after=following))
            for each in page.entries:
                sys.stdout.write(_line(each, as_json=json_output) + "\n")
            following = page.following

    _with_store(show, database, database_file, table_prefix, config_file)


def _line(stored: StoredAuditRecord, *, as_json: bool) -> str:
    record = stored.record
    at = datetime.fromtimestamp(stored.happened_at / 1e6, UTC).isoformat(timespec="milliseconds")
    if as_json:
        outcome = {"outcome": record.outcome.name}
        return json.dumps(
            {"audit_id": stored.audit_id, "happened_at": at, "broker": stored.broker_id, **asdict(record), **outcome}
        )
    parts = [at, record.outcome.name, record.principal or "-", record.address or "-", record.call, record.action]
    times = f"({record.times} times)" if record.times > 1 else ""
    text = " ".join(filter(None, [*parts, record.resource, times, record.detail]))
    # What clients send is not to move a terminal's cursor.
    return "".join(character if character.isprintable() else "?" for character in text)


async def _record(store: Store, command: str, resource: str, detail: str) -> None:
    """Records who changes the database directly, as far as this machine knows."""
    record = AuditRecord(
        f"os:{getpass.getuser()}",
        "",
        f"halfmq access {command}",
        "UPDATE",
        resource,
        AuditOutcome.ALLOWED,
        detail=detail,
    )
    await store.append_audit([record])


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
    rows = [
        [
            str(each.rule_id),
            "allow" if each.rule.allow else "deny",
            each.rule.subject,
            ", ".join(action.name or "" for action in Action if action in each.rule.actions),
            each.rule.kind or "*",
            each.rule.pattern,
            ", ".join(map(str, each.rule.sources)) or "anywhere",
        ]
        for each in found
    ]
    _print_table(["number", "", "subject", "actions", "kind", "pattern", "from"], rows)


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    table = Table(box=None)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    # Piped, a row is a line.
    Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPED).print(table, markup=False, highlight=False)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for others that change a file in this folder, and lets them wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _put(file: Path, content: bytes) -> None:
    """Replaces a file as a whole, with the same owner and mode; only its owner may read a new one."""
    before = file.stat() if file.exists() else None
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
            made = os.fstat(opened.fileno())
        if before is not None and (before.st_uid, before.st_gid) != (made.st_uid, made.st_gid):
            os.chown(name, before.st_uid, before.st_gid)
        Path(name).chmod(0o600 if before is None else before.st_mode & 0o777)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
