"""Logs tell what happened, and nothing of what is in messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from broker.domain.message import LogMessage, Message
from broker.ports.log import SendWork
from broker.ports.transactions import Half, PrepareWork
from halfmq_cli import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRETS = ("secret-body", "secret-tag", "secret-key", "secret-name", "secret-value")


def _message() -> Message:
    return Message("orders", b"secret-body", "secret-tag", ("secret-key",), {"secret-name": "secret-value"})


@pytest.fixture
def root() -> Iterator[None]:
    logger = logging.getLogger()
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)


def test_messages_keep_their_content_to_themselves() -> None:
    message = _message()
    stored = LogMessage(
        "orders", 0, 7, b"i" * 16, 0, message.body, message.tag, ["secret-key"], message.properties, None, 1, 2
    )
    for shown in (message, stored, PrepareWork(b"i" * 16, 1, [Half(1, None, message)]), SendWork(b"i", 1, 0, message)):
        text = repr(shown)
        assert "orders" in text
        assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.usefixtures("root")
def test_an_error_is_logged_without_the_values_of_variables(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(log_format, "info")
    body = b"secret-body"
    try:
        raise ValueError(len(body))
    except ValueError:
        logging.getLogger("halfmq.test").exception("it failed")
    shown = capsys.readouterr().err
    assert "it failed" in shown
    assert "ValueError" in shown
    assert "secret" not in shown.replace('body = b"secret-body"', "")
