"""How a bridge reaches halfmq: as it is told, with calls that end soon."""

from __future__ import annotations

from client_core.connection import BearerToken, Connection, RetryConfig, TlsConfig
from halfmq_connect.kafka.doors import hurried


def test_all_but_the_retries_of_a_connection_is_kept() -> None:
    given = Connection("a:1,b:1", TlsConfig(), RetryConfig(deadline=99.0), BearerToken("token"), in_order=True)
    kept = hurried(given, None)
    assert (kept.endpoints, kept.tls, kept.auth, kept.in_order) == (given.endpoints, given.tls, given.auth, True)
    assert kept.retry.deadline == 20.0
