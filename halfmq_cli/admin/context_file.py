"""The file of contexts: endpoints and credentials under names, in TOML, for its owner only."""

from __future__ import annotations

import os
import stat
import tempfile
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfmq_cli.admin.ending import USAGE, Ended, say

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "HALFMQ_CONTEXTS"
MASK = "********"


@dataclass(frozen=True)
class Context:
    """How to reach the brokers of one database.

    Attributes:
        endpoint: Where brokers listen, several separated by commas.
        admin_endpoint: Where they listen for operators, if that is another address (`admin_listen`).
        tls: Whether the connection is encrypted; so it is also with any of the files.
        tls_ca: PEM file of the authorities to trust.
        tls_certificate: PEM file of the certificate to show.
        tls_key: PEM file of its key.
        tls_server_name: Name to expect in the brokers' certificates.
        token: The token to show.
        token_file: File with it.
        token_variable: Environment variable with it.
        token_without_tls: Whether to show it also without TLS.
        operator: Name to record with decisions, where brokers do not know it from the credentials.
    """

    endpoint: str | None = None
    admin_endpoint: str | None = None
    tls: bool | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    token_variable: str | None = None
    token_without_tls: bool | None = None
    operator: str | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Context:
        """A context with these settings; empty texts are none."""
        return cls(**{name: value for name, value in settings.items() if value not in {None, ""}})

    def given(self) -> dict[str, Any]:
        """What is set; the token is among it."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    def shown(self) -> dict[str, Any]:
        """What is set, with the token masked."""
        return {name: MASK if name == "token" else value for name, value in self.given().items()}

    def over(self, other: Context) -> Context:
        """This one's settings, and the other's where this one has none; a token is replaced in whichever form."""
        mine = self.given()
        tokens = {"token", "token_file", "token_variable"}
        theirs = {name: value for name, value in other.given().items() if not (name in tokens and tokens & mine.keys())}
        return Context(**{**theirs, **mine})


@dataclass(frozen=True)
class Contexts:
    """What the file holds.

    Attributes:
        path: The file.
        named: The contexts by their names.
        current: The one that was chosen by `context use`; None: none.
    """

    path: Path
    named: dict[str, Context]
    current: str | None = None

    def context(self, name: str) -> Context:
        """A context by its name.

        Raises:
            Ended: There is none of that name.
        """
        if name not in self.named:
            known = ", ".join(self.named) or "none"
            raise Ended(USAGE, f"context: {str(self.path)!r} has no context {name!r}; there are: {known}")
        return self.named[name]


def path_of_contexts() -> Path:
    """The file: HALFMQ_CONTEXTS, or below XDG_CONFIG_HOME, or below ~/.config."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "halfmq" / "contexts.toml"


def read_contexts() -> Contexts:
    """Reads the file; without one there are no contexts.

    Raises:
        Ended: It cannot be read, holds something else, or others can read a token that it holds.
    """
    path = path_of_contexts()
    try:
        with path.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = tomllib.load(opened)
    except FileNotFoundError:
        return Contexts(path, {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Ended(USAGE, f"contexts: {str(path)!r} cannot be read: {error}") from None
    named = content.pop("contexts", {})
    current = content.pop("current", None)
    if content or not isinstance(named, dict) or not isinstance(current, str | None):
        raise Ended(USAGE, f"contexts: {str(path)!r} has the text `current` and tables [contexts.NAME], and no more")
    found = Contexts(path, {name: _context(path, name, table) for name, table in named.items()}, current)
    if stat.S_IMODE(mode) & 0o077:
        if any(each.token for each in found.named.values()):
            raise Ended(USAGE, f"contexts: others can read {str(path)!r}, which holds a token: chmod 600 {path}")
        say(f"others can read or change {str(path)!r}: chmod 600 {path}")
    return found


def write_contexts(contexts: Contexts) -> None:
    """Replaces the file as a whole; only its owner may read it.

    Raises:
        Ended: It cannot be written.
    """
    lines = [] if contexts.current is None else [f"current = {_toml(contexts.current)}", ""]
    for name, context in sorted(contexts.named.items()):
        lines.append(f"[contexts.{_toml(name)}]")
        lines += [f"{key} = {_toml(value)}" for key, value in context.given().items()]
        lines.append("")
    try:
        contexts.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made with mode 0600. Of a link, what it leads to is replaced.
        target = contexts.path.resolve()
        descriptor, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                opened.write("\n".join(lines))
            Path(made).replace(target)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Ended(USAGE, f"contexts: {str(contexts.path)!r} cannot be written: {error.strerror}") from None


def _context(path: Path, name: str, table: Any) -> Context:
    kinds = {each.name: bool if "bool" in str(each.type) else str for each in fields(Context)}
    if not isinstance(table, dict):
        raise Ended(USAGE, f"contexts: {str(path)!r}: contexts.{name} is a table, [contexts.{name}]")
    for key, value in table.items():
        if key not in kinds:
            raise Ended(USAGE, f"contexts: {str(path)!r}: contexts.{name} has no setting {key!r}; {', '.join(kinds)}")
        if not isinstance(value, kinds[key]):
            wanted = "true or false" if kinds[key] is bool else "a text"
            raise Ended(USAGE, f"contexts: {str(path)!r}: {key} of contexts.{name} is {wanted}")
    return Context(**table)


def _toml(value: str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not value.isprintable():
        raise Ended(USAGE, "contexts: a setting has characters that cannot be printed")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
