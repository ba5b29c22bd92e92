"""How a client says who it is: a bearer token with each call."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import grpc

__all__ = ["AuthorizedChannel", "BearerToken", "TokenFile"]

HEADER = "authorization"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token of the broker's file of tokens, or a JWT.

    Attributes:
        token: The token, or a function that returns it. The function is called for each call, from threads of gRPC: it
            has to be quick, and must keep what it fetched until that expires.
        without_tls: Send it also over connections without TLS, where others can read it.
    """

    token: str | Callable[[], str] = field(repr=False)
    without_tls: bool = False

    def __post_init__(self) -> None:
        """Refuses what is no token.

        Raises:
            ConfigurationError: It is neither a text without blanks nor a function.
        """
        if not callable(self.token):
            checked(self.token)

    def current(self) -> str:
        """The token for a call.

        Raises:
            ConfigurationError: The function returned something else.
        """
        return checked(self.token() if callable(self.token) else self.token)


class TokenFile:
    """A token in a file, for `BearerToken(TokenFile(name))`: read again whenever the file was replaced."""

    def __init__(self, file: str | Path) -> None:
        """Reads it.

        Raises:
            ConfigurationError: It cannot be read, or holds no token.
        """
        self._file = Path(file)
        self._state: object = None
        self._token = ""
        self()

    def __call__(self) -> str:
        """The token; while the file cannot be read, the one that it held before."""
        try:
            found = self._file.stat()
            state = (found.st_ino, found.st_mtime_ns, found.st_size)
            if state != self._state:
                self._token = checked(self._file.read_text(encoding="utf-8").strip())
                self._state = state
        except (OSError, UnicodeDecodeError, ConfigurationError) as error:
            if not self._token:
                msg = f"the file {str(self._file)!r} holds no token that can be read: {error}"
                raise ConfigurationError(msg, field="token") from None
        return self._token


def checked(token: object) -> str:
    """A token that a header can carry.

    Raises:
        ConfigurationError: It cannot; it is not shown.
    """
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
        msg = "a token is a text of printable ASCII characters without blanks, or a function that returns one"
        raise ConfigurationError(msg, field="token")
    return token


class AuthorizedChannel:
    """A channel whose calls carry a token; otherwise as the channel that it is made from.

    Not gRPC's call credentials: they go through a thread for each call, and not at all without TLS. Not its
    interceptors: they put a queue of their own before each stream.
    """

    def __init__(self, channel: grpc.aio.Channel, auth: BearerToken) -> None:
        """Takes the channel, and what its calls carry."""
        self._channel = channel
        self._auth = auth

    def unary_unary(self, *method: Any, **rest: Any) -> Callable[..., Any]:
        """A call with one answer."""
        return self._authorized(self._channel.unary_unary(*method, **rest))

    def unary_stream(self, *method: Any, **rest: Any) -> Callable[..., Any]:
        """A call with many answers."""
        return self._authorized(self._channel.unary_stream(*method, **rest))

    def stream_stream(self, *method: Any, **rest: Any) -> Callable[..., Any]:
        """A call that goes both ways."""
        return self._authorized(self._channel.stream_stream(*method, **rest))

    async def __aenter__(self) -> AuthorizedChannel:
        """Enters the channel."""
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Closes the channel."""
        await self._channel.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        """Everything else."""
        return getattr(self._channel, name)

    def _authorized(self, method: Callable[..., Any]) -> Callable[..., Any]:
        auth = self._auth

        def call(*request: Any, metadata: Iterable[tuple[str, str | bytes]] | None = None, **rest: Any) -> Any:
            return method(*request, metadata=(*(metadata or ()), (HEADER, f"Bearer {auth.current()}")), **rest)

        return call
