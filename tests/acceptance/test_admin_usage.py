"""`halfmq admin` with arguments that cannot be meant: each is refused with one line, and none ends in a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.admin_command import AdminCommand
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

ID = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminCommand]:
    folder = tmp_path_factory.mktemp("broker")
    with BrokerProcess(f"sqlite:///{folder / 'try.db'}") as broker:
        made = AdminCommand(broker.endpoint, folder)
        made.done("topic", "create", "orders")
        made.done("group", "create", "shipping")
        yield made


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("topic", "list", "--every", "nan"), 2, ("--every", "0.1")),
        (("topic", "list", "--every", "inf"), 2, ("--every",)),
        (("topic", "list", "--timeout", "nan"), 2, ("deadline",)),
        (("topic", "list", "--timeout", "0"), 2, ("--timeout",)),
        (("topic", "list", "--endpoint", "nowhere"), 2, ("endpoint",)),
        (("topic", "list", "--tls-ca", "/nowhere"), 2, ("--tls-ca", "/nowhere")),
        (("topic", "list", "--token-file", "/nowhere"), 2, ("token",)),
        (("topic", "list", "--context", "none"), 2, ("context", "none")),
        (("topic", "list", "--tls", "--timeout", "1"), 3, ("no broker answered", "it has no TLS")),
        (("lag", "--group", "nobody"), 0, ("no group matches",)),
        (("topic", "create", "a b"), 1, ("INVALID_ARGUMENT", "topic")),
        (("topic", "create", ""), 2, ("topic",)),
        (("topic", "create", "x", "--queues", "0"), 2, ("queues",)),
        (("topic", "create", "x", "--queues", "9999999999"), 2, ("queues",)),
        (("topic", "create", "x", "--retention", "-1s"), 2, ("--retention",)),
        (("topic", "create", "x", "--retention-bytes", "many"), 2, ("--retention-bytes",)),
        (("topic", "create", "x", "--compression", "gzip"), 2, ("--compression", "none or zstd")),
        (("topic", "show", "orders' OR 1=1"), 1, ("INVALID_ARGUMENT",)),
        (("group", "create", "x", "--start", "noon"), 2, ("--start",)),
        (("group", "create", "x", "--retry-delay", "x"), 2, ("--retry-delay",)),
        (("group", "seek", "shipping", "orders", "99999999999999999999", "--queue", "0", "--yes"), 2, ("to",)),
        (("group", "seek", "shipping", "orders", "9999999w", "--yes"), 2, ("to",)),
        (("group", "filter", "shipping", "orders", "--tags", "a|b"), 2, ("tags",)),
        (("group", "filter", "shipping", "orders", "--tags", "a", "--sql", "b = 1"), 2, ("--tags", "--sql")),
        (("tx", "show", "é"), 2, ("transaction id", "UUID")),
        (("tx", "show", ""), 2, ("transaction id",)),
        (("tx", "show", "x"), 1, ("INVALID_ARGUMENT",)),
        (("tx", "list", "--limit", "-1"), 2, ("--limit",)),
        (("tx", "list", "--older-than", "99999999999w"), 2, ("--older-than",)),
        (("tx", "list", "--decided", "--since", "2026-13-01"), 2, ("--since", "2026-01-31T08:30:00Z")),
        (("tx", "commit", ID, "--reason", "x" * 5000, "--yes"), 1, ("reason",)),
        (("message", "show", "\x1b[2J"), 1, ("INVALID_ARGUMENT",)),
        (("message", "send", "orders"), 2, ("--body",)),
        (("message", "send", "orders", "--body", ""), 1, ("body is empty",)),
        (("message", "send", "orders", "--body", "x", "--delay", "999w"), 1, ("delay",)),
        (("message", "find", "orders", "--since", "x"), 2, ("--since",)),
        (("message", "find", "orders", "--offset", "1"), 2, ("--offset", "--queue")),
        (("message", "find", "orders", "--queue", "-1"), 2, ("queue",)),
        (("message", "find", "orders", "--tags", "a", "--sql", "a = 1"), 2, ("--tags", "--sql")),
        (("message", "tail", "orders", "--from", "x"), 2, ("--from",)),
        (("dlq", "list", "nobody"), 1, ("NOT_FOUND", "nobody")),
        (("dlq", "redrive", "shipping", "--offset", "-1"), 2, ("offsets",)),
        (("access", "grant", "nobody", "produce", "topic", "x"), 1, ("INVALID_ARGUMENT",)),
        (("access", "quota", "acme", "--topics", "-1"), 2, ("topics",)),
        (("access", "audit", "--outcome", "maybe"), 2, ("--outcome", "allowed or failed")),
        (("clients", "--group", ""), 2, ("group",)),
        (("apply", "/nowhere"), 2, ("/nowhere", "cannot be read")),
        (("config", "export", "--output", "/nowhere/x"), 2, ("--output",)),
    ],
    ids=lambda part: " ".join(part)[:60].encode("ascii", "replace").decode() if isinstance(part, tuple) else "",
)
def test_it_is_told_in_a_line(
    admin: AdminCommand, arguments: tuple[str, ...], status: int, words: tuple[str, ...]
) -> None:
    admin(*arguments).refused(status, *words)


def test_what_typer_refuses_has_the_status_of_wrong_usage(admin: AdminCommand) -> None:
    for arguments in (("topic", "show"), ("topic", "list", "--nonsense"), ("access", "revoke", "0"), ("nonsense",)):
        assert admin(*arguments).status == 2
