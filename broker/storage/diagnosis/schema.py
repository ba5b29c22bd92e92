"""Tables, columns, indexes and views: compared with what they must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.inspection.base import PRIMARY, CannotLook, NoTables, StoredIndex
from broker.storage.migrations import newest
from broker.storage.migrations.views import VIEWS
from broker.storage.tables.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.diagnosis.inspection.base import StoredColumn, StoredTable
    from broker.storage.diagnosis.subject import Subject

NAME = "tables"
_COLLATION = "utf8mb4_bin"
_BACKUP = "restore it from a backup: it was dropped or renamed since"
_NOT_OURS = "drop it, unless you know what it is for"


def tables(subject: Subject) -> list[Finding]:
    """The version of the tables; if it is this program's, every table as well."""
    try:
        subject.need_tables()
    except NoTables as missing:
        if missing.hidden:
            raise
        return [Finding(NAME, Severity.CRITICAL, missing.cause, missing.remedy)]
    stored = subject.inspection.tables(subject.session, subject.database.names.all())
    findings = []
    for table in metadata.sorted_tables:
        name = subject.database.names.table(table.name)
        if name not in stored:
            findings.append(_not_shown(subject, name))
            continue
        findings += _engine(name, stored[name])
        findings += _columns(subject, name, table, stored[name])
        findings += _indexes(subject, name, table, stored[name])
    findings += _views(subject)
    count = f"{len(metadata.tables)} tables and {len(VIEWS)} views"
    return findings or [Finding(NAME, Severity.OK, f"{count} of version {newest()} are as they must be")]


def _not_shown(subject: Subject, name: str) -> Finding:
    """A table that the database does not show: it is not there, or the user has no right on it."""
    try:
        subject.inspection.has_table(subject.session, name)
    except CannotLook as denied:
        return Finding(NAME, Severity.WARNING, f"cannot be looked at: {denied.cause}", denied.remedy)
    return Finding(NAME, Severity.CRITICAL, f"there is no table {name}", _BACKUP)


def _views(subject: Subject) -> Iterator[Finding]:
    names = [subject.database.names.prefix + name for name in VIEWS]
    there = subject.inspection.views(subject.session, names)
    for name in names:
        if name not in there:
            # The servers show no view to who may not read it.
            found = f"there is no view {name}, or this user may not read it: only people and tools with SQL need it"
            yield Finding(NAME, Severity.WARNING, found, "run `halfmq migrate --views`, or grant SELECT on it")


def _engine(name: str, stored: StoredTable) -> list[Finding]:
    if stored.engine in {"", "InnoDB"}:
        return []
    found = f"the table {name} is of the engine {stored.engine}: it has no transactions"
    return [Finding(NAME, Severity.CRITICAL, found, f"stop the brokers, then ALTER TABLE {name} ENGINE = InnoDB")]


def _columns(subject: Subject, name: str, table: sa.Table, stored: StoredTable) -> Iterator[Finding]:
    inspection = subject.inspection
    for column in table.columns:
        found = stored.columns.get(column.name)
        if found is None:
            repair = inspection.column_repair(name, column, missing=True)
            yield Finding(NAME, Severity.CRITICAL, f"there is no column {name}.{column.name}", repair)
        elif fault := _fault(subject, column, found):
            repair = inspection.column_repair(name, column, missing=False)
            yield Finding(NAME, Severity.CRITICAL, f"the column {name}.{column.name} {fault}", repair)
    for extra in stored.columns.keys() - {column.name for column in table.columns}:
        needed = not stored.columns[extra].nullable and stored.columns[extra].default is None
        yield Finding(
            NAME,
            Severity.CRITICAL if needed else Severity.WARNING,
            f"the column {name}.{extra} is not of halfmq"
            + (", and must be given a value: halfmq cannot insert rows" if needed else ""),
            f"{_NOT_OURS}: ALTER TABLE {name} DROP COLUMN {extra}",
        )


def _fault(subject: Subject, column: sa.Column[Any], found: StoredColumn) -> str:
    """What is wrong with a column; empty if it is as it must be."""
    wanted = subject.inspection.type_of(column)
    default = None
    if isinstance(column.server_default, sa.DefaultClause):
        default = str(column.server_default.arg)
    if found.type != wanted:
        return f"is of the type {found.type}, not {wanted}"
    if found.nullable != column.nullable and not (column.primary_key and subject.database.dialect.one_writer):
        return "may be NULL" if found.nullable else "must not be NULL, though halfmq leaves it out"
    if found.default != default:
        return f"has the default {found.default}, not {default}"
    if found.collation not in {"", _COLLATION}:
        return (
            f"compares by {found.collation}, not by bytes ({_COLLATION}): names that differ in case would be the same"
        )
    if column.autoincrement is True and not found.numbered and not subject.database.dialect.one_writer:
        return "is not AUTO_INCREMENT: no row can be inserted"
    return ""


def _indexes(subject: Subject, name: str, table: sa.Table, stored: StoredTable) -> Iterator[Finding]:
    wanted = {PRIMARY: StoredIndex(tuple(column.name for column in table.primary_key), True)}
    for constraint in table.constraints:
        if isinstance(constraint, sa.UniqueConstraint):
            wanted[str(constraint.name)] = StoredIndex(tuple(column.name for column in constraint.columns), True)
    for index in table.indexes:
        wanted[str(index.name)] = StoredIndex(tuple(column.name for column in index.columns), bool(index.unique))
    known = set()
    for own, expected in wanted.items():
        named = own if own == PRIMARY else subject.inspection.index_name(subject.database.names, own)
        found = stored.indexes.get(named)
        if found is None and expected.unique:
            # SQLite names those of constraints itself.
            named = next((each for each, columns in stored.indexes.items() if columns == expected), named)
            found = stored.indexes.get(named)
        known.add(named)
        if found != expected:
            fault = f"the index {named} of {name} is on ({', '.join(found.columns)})" if found else ""
            yield Finding(
                NAME,
                Severity.CRITICAL,
                f"{fault}, not on ({', '.join(expected.columns)})" if found else f"there is no index {named} of {name}",
                _index_repair(name, named, expected, there=found is not None),
            )
    for extra in stored.indexes.keys() - known:
        yield Finding(
            NAME,
            Severity.WARNING,
            f"the index {extra} of {name} is not of halfmq: every write to it costs more"
            + (", and rows may be refused" if stored.indexes[extra].unique else ""),
            f"{_NOT_OURS}: DROP INDEX {extra}",
        )


def _index_repair(name: str, index: str, wanted: StoredIndex, *, there: bool) -> str:
    columns = ", ".join(wanted.columns)
    if index == PRIMARY:
        return f"ALTER TABLE {name} {'DROP PRIMARY KEY, ' if there else ''}ADD PRIMARY KEY ({columns})"
    first = f"drop the index {index} of {name}, then " if there else ""
    return f"{first}CREATE {'UNIQUE ' if wanted.unique else ''}INDEX {index} ON {name} ({columns})"
