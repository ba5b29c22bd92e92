"""How a command ends: its exit status, and one line about what was wrong."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import grpc

from client_core.errors import BrokerUnavailable, ConfigurationError, HalfmqError
from halfmq_cli.admin.plain import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSED = 1
USAGE = 2
UNAVAILABLE = 3
GIVEN_UP = 4
INTERRUPTED = 130

_NO_ANSWER = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
# What gRPC says of one endpoint among others, or a broker of its database.
_CAUSE = re.compile(r"\((?:\w+: )?(?:failed to connect to all addresses; last error: \w+: )?(?P<cause>.*)\); check the")
# What is heard where one side has TLS and the other has none, or does not know the authority.
_HINTS = (
    ("Socket closed", "; a broker with TLS needs --tls or --tls-ca"),
    ("WRONG_VERSION_NUMBER", "; it has no TLS: leave --tls and the like out"),
    ("CERTIFICATE_VERIFY_FAILED", "; --tls-ca names the authority of its certificate"),
)


class Ended(Exception):
    """Ends the command.

    Attributes:
        status: Its exit status.
        text: What is written to standard error; empty: nothing.
    """

    def __init__(self, status: int, text: str = "") -> None:
        """Takes the exit status, and what is written to standard error."""
        super().__init__(text)
        self.status = status
        self.text = text


def wrong(name: str, rule: str) -> NoReturn:
    """Ends the command because of an option or argument.

    Raises:
        Ended: Always.
    """
    raise Ended(USAGE, f"{name}: {rule}")


def say(text: str) -> None:
    """Writes a line about the command to standard error."""
    sys.stderr.write(f"halfmq: {plain(' '.join(text.split()))}\n")
    sys.stderr.flush()


@contextmanager
def ended() -> Iterator[None]:
    """Turns errors into a line and an exit status; a reader that closed the pipe ends the command without either.

    Raises:
        SystemExit: The command ends.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Ended as end:
        if end.text:
            say(end.text)
        raise SystemExit(end.status) from None
    except HalfmqError as error:
        say(told(error))
        raise SystemExit(status_of(error)) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(INTERRUPTED) from None


def status_of(error: HalfmqError) -> int:
    """The exit status for an error of the SDK."""
    if isinstance(error, ConfigurationError):
        return USAGE
    return UNAVAILABLE if isinstance(error, BrokerUnavailable) else REFUSED


def told(error: HalfmqError) -> str:
    """An error as one line: what, which field, and what to do."""
    text = str(error)
    if isinstance(error, BrokerUnavailable) and error.code in _NO_ANSWER:
        found = _CAUSE.search(text)
        cause = text if found is None else found["cause"]
        return (
            f"no broker answered in time ({cause}); --endpoint or a context says where they listen, --timeout how long "
            "to try" + "".join(hint for sign, hint in _HINTS if sign in cause)
        )
    if error.code is not None and error.code.name == "UNAUTHENTICATED":
        return f"{text} (HALFMQ_TOKEN, --token-file, or a context with a token says who you are)"
    return f"{error.field}: {text}" if isinstance(error, ConfigurationError) and error.field else text
