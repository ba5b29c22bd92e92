"""`halfmq admin config export` and `halfmq admin apply`: topics, groups, filters, rights and quotas as a file."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from client_core.errors import ConfigurationError, HalfmqError
from halfmq_cli.admin.command import command
from halfmq_cli.admin.documents import read_document
from halfmq_cli.admin.ending import USAGE, Ended, say, wrong
from halfmq_cli.admin.plain import counted
from halfmq_cli.admin.records import json_line
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it

if TYPE_CHECKING:
    from client_core.admin import ConfigurationChange


class _Dumper(yaml.SafeDumper):
    """Writes lists of plain values in one line."""


def _write_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    plain = all(isinstance(each, str | int) for each in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _write_list)
_MARKS = {"create": "+", "update": "~", "delete": "-"}


@command()
def export(
    session: Session,
    output: Annotated[Path | None, typer.Option(help="A file to write it to [standard output].")] = None,
    rights: Annotated[bool, typer.Option(help="Rules and quotas, too.")] = True,
) -> None:
    """Write topics, groups, filters, rules and quotas as YAML, as `halfmq admin apply` takes it."""
    document = session.admin.export_configuration(rights=rights)
    if session.output.as_json:
        text = json_line(document) + "\n"
    else:
        # Escaped like JSON: nothing that somebody put into a filter moves the cursor of a terminal.
        text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=1000)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        wrong("--output", f"{str(output)!r} cannot be written: {error.strerror}")


@command()
def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(help="A file of YAML; -: standard input.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be changed.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what the file's sections do not name; they are shown before.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before something is deleted.")] = False,
) -> None:
    """Make topics, groups, filters, rules and quotas what a file says. Applied again, it changes nothing.

    What the file does not name stays as it is. What is unknown or impossible is refused before anything is changed.
    """
    document = read_document(file)
    try:
        changes = session.admin.plan_configuration(document.content, prune=prune)
    except ConfigurationError as error:
        if not error.field and error.code is None:
            raise
        raise Ended(USAGE, f"{document.place(error.field)}: {error.field}: {error}") from None
    deleted = sum(change.action == "delete" for change in changes)
    if dry_run or (deleted and not session.output.as_json):
        _show(session, changes)
        if dry_run:
            _sum_up(session, changes, "to make")
            return
    if deleted:
        session.ask(f"make {counted(len(changes), 'change')}, of which {deleted} delete something", yes=yes)
    made = 0
    try:
        for change in session.admin.apply_changes(changes):
            made += 1
            if session.output.as_json or not deleted:
                _show(session, [change])
    except HalfmqError:
        say(f"{made} of {counted(len(changes), 'change')} were made; apply the file again for the others")
        raise
    _sum_up(session, changes, "made")


def _show(session: Session, changes: list[ConfigurationChange]) -> None:
    for change in changes:
        settings = _settings(change)
        text = f"{_MARKS[change.action]} {change.kind} {change.name}" + (f": {settings}" if settings else "")
        record = {name: getattr(change, name) for name in ("action", "kind", "name", "before", "after")}
        session.done(record, text)
    session.output.flush()


def _settings(change: ConfigurationChange) -> str:
    names = dict.fromkeys([*change.before, *change.after])
    return ", ".join(
        f"{name} {_text(change.before[name])} -> {_text(change.after[name])}"
        if name in change.before and name in change.after
        else f"{name} {_text(change.after.get(name, change.before.get(name)))}"
        for name in names
    )


def _text(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, dict):
        return " ".join(f"{name} {each!r}" for name, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sum_up(session: Session, changes: list[ConfigurationChange], what: str) -> None:
    if session.output.as_json:
        return
    by_action = {
        name: sum(change.action == action for change in changes)
        for action, name in (("create", "created"), ("update", "changed"), ("delete", "deleted"))
    }
    told = ", ".join(f"{count} {name}" for name, count in by_action.items() if count)
    session.output.line(f"{counted(len(changes), 'change')} {what}: {told}" if changes else "nothing to change")
