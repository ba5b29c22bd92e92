"""How to reach the brokers of one database: endpoints, TLS and retries."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import grpc

from client_core.arguments import check_kind
from client_core.connection.auth import AuthorizedChannel, BearerToken
from client_core.connection.endpoints import Addresses, parse_endpoints
from client_core.connection.retry import RetryConfig
from client_core.connection.tls import TlsConfig
from client_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Connection", "Endpoint"]

_CHANCE = random.SystemRandom()
"""Its own: the one of the module random belongs to the program, which may have seeded it."""


@dataclass(frozen=True)
class Connection:
    """The settings that all clients of one database share: create it once, and pass it to each of them.

    Every client accepts it instead of an endpoint: ``TransactionProducer(connection, "shop")``. It holds settings only;
    each client opens its own channels, so clients of several event loops and processes can share one.

    Attributes:
        endpoint: Where the brokers listen: ``"host:port"``, several separated by commas, or a sequence. Any broker of
            the database works.
        tls: How to encrypt; None: not at all.
        retry: When calls are retried.
        auth: Who the client is, where brokers want to know; None: it shows nothing, or the certificate of `tls`.
        in_order: Try the endpoints in the order given, such as those of the same zone first. Otherwise each client has
            an order of its own, by chance: so clients spread over the brokers, and those of one that fails over the
            others.
    """

    endpoint: Addresses
    tls: TlsConfig | None = None
    retry: RetryConfig = field(default_factory=RetryConfig)
    auth: BearerToken | None = None
    in_order: bool = False

    def __post_init__(self) -> None:
        """Refuses settings that cannot work.

        Raises:
            ConfigurationError: The endpoint is invalid, or another setting is of the wrong type.
        """
        check_kind("tls", self.tls, TlsConfig)
        check_kind("retry", self.retry, RetryConfig)
        check_kind("auth", self.auth, BearerToken)
        if self.auth is not None and self.tls is None and not self.auth.without_tls:
            msg = "a token goes over TLS only, unless told otherwise: give tls=, or BearerToken(..., without_tls=True)"
            raise ConfigurationError(msg, field="auth")
        if self.retry is None:
            object.__setattr__(self, "retry", RetryConfig())
        object.__setattr__(self, "endpoint", parse_endpoints(self.endpoint))

    @property
    def endpoints(self) -> Sequence[str]:
        """The endpoints, each once, in the order given."""
        return self.endpoint

    def order(self) -> Sequence[str]:
        """The endpoints as one client tries them."""
        return self.endpoints if self.in_order else _CHANCE.sample(self.endpoints, len(self.endpoints))

    @classmethod
    def of(
        cls, given: Endpoint, *, tls: TlsConfig | None = None, retry: RetryConfig | None = None
    ) -> Self | Connection:
        """The connection of a client, from a Connection or from an endpoint and separate settings.

        Raises:
            ConfigurationError: A setting is invalid, or is given in addition to a Connection.
        """
        check_kind("tls", tls, TlsConfig)
        check_kind("retry", retry, RetryConfig)
        if not isinstance(given, Connection):
            return cls(given, tls, retry or RetryConfig())
        for name, beside in (("tls", tls), ("retry", retry)):
            if beside is not None:
                msg = (
                    f"{name} stands beside a Connection, which has its own; give it there: Connection(..., {name}=...)"
                )
                raise ConfigurationError(msg, field=name)
        return given

    def channel(self, endpoint: str, options: Iterable[tuple[str, Any]]) -> grpc.aio.Channel:
        """A channel to one of the endpoints; call it on the event loop that will use it."""
        listed = [*options, ("grpc.primary_user_agent", f"halfmq-python/{_own_version()}")]
        if self.tls is None:
            made = grpc.aio.insecure_channel(endpoint, listed)
        else:
            if self.tls.server_name is not None:
                listed.append(("grpc.ssl_target_name_override", self.tls.server_name))
            made = grpc.aio.secure_channel(endpoint, self.tls.credentials(), listed)
        return made if self.auth is None else cast("grpc.aio.Channel", AuthorizedChannel(made, self.auth))


@cache
def _own_version() -> str:
    """The version of this library; "unknown" where it runs without being installed."""
    try:
        return version("halfmq")
    except PackageNotFoundError:
        return "unknown"


Endpoint: TypeAlias = Addresses | Connection
"""Where the brokers listen: ``"host:port"``, several separated by commas, a sequence of them, or a Connection."""
