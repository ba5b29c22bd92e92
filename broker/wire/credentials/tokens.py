"""Bearer tokens from a file of their hashes.

    [alice]
    sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
    roles = ["shop"]
    tenant = "acme"

A token is a random text of 256 bits: whoever reads its hash does not learn it, and a slow hash would only slow down the
broker. A principal with two hashes is one whose token is being changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import tomllib
from typing import TYPE_CHECKING

from broker.domain.access import Principal
from broker.domain.tenancy import is_tenant
from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

FIELD = "access_tokens"
PREFIX = "halfmq_"
"""Of every token, so that scanners for leaked secrets find them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_OF_NAMES = "up to 100 letters, digits and . _ @ -, a letter or digit first"
_HASH = re.compile(r"[0-9a-f]{64}")
_KEYS = {"sha256", "roles", "tenant"}


def new_token() -> str:
    """A token."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """What the file holds instead of it."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(raw: bytes) -> dict[str, Principal]:
    """Principals by the hashes of their tokens.

    Raises:
        ConfigurationError: names the table that is wrong; hashes are not shown.
    """
    try:
        tables = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8"
        raise ConfigurationError(f"The file of tokens is not TOML: {why}.", field=FIELD) from None
    found: dict[str, Principal] = {}
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            raise _wrong(name, f"a name has {_OF_NAMES}")
        if not isinstance(table, dict) or not table.keys() <= _KEYS:
            raise _wrong(name, f"a table has {', '.join(sorted(_KEYS))}")
        hashes = _list_of(table.get("sha256"), _HASH)
        roles = _list_of(table["roles"], _NAME) if table.get("roles") else []
        tenant = table.get("tenant", "")
        if not hashes:
            raise _wrong(name, "sha256 is a list of hashes, each of 64 hexadecimal digits, of `halfmq access token`")
        if roles is None:
            raise _wrong(name, "roles is a list of names")
        if not isinstance(tenant, str) or (tenant and not is_tenant(tenant)):
            raise _wrong(name, "tenant is 1 to 40 letters, digits, - and _")
        for each in hashes:
            if each in found:
                raise _wrong(name, f"{found[each].name} has the same token")
            found[each] = Principal(name, frozenset(roles), tenant)
    return found


def _list_of(value: object, form: re.Pattern[str]) -> list[str] | None:
    """A list of texts of this form; None if it is none."""
    if isinstance(value, list) and all(isinstance(each, str) and form.fullmatch(each) for each in value):
        return value
    return None


def _wrong(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"[{name[:100]}] in the file of tokens: {why}.", field=FIELD)


def with_token(raw: bytes, name: str, new: str, *, roles: Sequence[str], tenant: str, replace: bool) -> bytes:
    """The content of a file of tokens with a further one.

    Args:
        raw: the content before.
        name: the principal.
        new: the hash of its token.
        roles: its roles; if there are none, those that it has stay.
        tenant: its tenant; if empty, the one that it has stays.
        replace: drop the tokens that it has.

    Raises:
        ConfigurationError: the content is wrong, before or then.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"A name has {_OF_NAMES}.", field="name")
    read_tokens(raw)
    tables = tomllib.loads(raw.decode())
    table = tables.setdefault(name, {})
    table["sha256"] = [*([] if replace else table.get("sha256", [])), new]
    if roles:
        table["roles"] = list(roles)
    if tenant:
        table["tenant"] = tenant
    lines = []
    for each, content in tables.items():
        lines.append(f"[{json.dumps(each)}]")
        # Texts and lists of texts are written in TOML as in JSON.
        lines += [f"{key} = {json.dumps(value)}" for key, value in content.items()]
        lines.append("")
    written = "\n".join(lines).encode()
    read_tokens(written)
    return written
