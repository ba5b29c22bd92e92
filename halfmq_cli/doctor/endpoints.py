"""Brokers: whether they answer, and serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker.ports.diagnosis import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client_core.connection import TlsConfig

NAME = "endpoints"
SECONDS = 5.0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_ALL = ""
"""The name of the broker as a whole among its services."""


def look(endpoint: str, tls: TlsConfig | None) -> list[Finding]:
    """Asks a broker for its health: of the whole, and of its services."""
    try:
        with _channel(endpoint, tls) as channel:
            states = _states(health_pb2_grpc.HealthStub(channel))
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or ""
        return [Finding(NAME, Severity.CRITICAL, f"{endpoint} does not answer ({code.name}: {details})", _remedy(tls))]
    resting = sorted(service for service, state in states.items() if state != _SERVING and service != _ALL)
    if states.get(_ALL, _SERVING) != _SERVING:
        text = f"{endpoint} answers, and does not serve: it drains, or is not ready"
        return [Finding(NAME, Severity.WARNING, text, "look into its log; start another broker before one is ended")]
    if resting:
        text = f"{endpoint} answers, and does not serve {', '.join(resting)}"
        return [Finding(NAME, Severity.WARNING, text, "look into its log for what they wait for")]
    return [Finding(NAME, Severity.OK, f"{endpoint} answers and serves")]


def _states(health: health_pb2_grpc.HealthStub) -> Mapping[str, int]:
    try:
        found = health.List(health_pb2.HealthListRequest(), timeout=SECONDS)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return {_ALL: health.Check(health_pb2.HealthCheckRequest(service=_ALL), timeout=SECONDS).status}
    return {service: each.status for service, each in found.statuses.items()}


def _channel(endpoint: str, tls: TlsConfig | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(endpoint)
    return grpc.secure_channel(endpoint, tls.credentials())


def _remedy(tls: TlsConfig | None) -> str:
    if tls is None:
        return "start the broker, or correct the address; one with TLS needs --tls or --tls-ca"
    return "start the broker, or correct the address, or the files of --tls-ca, --tls-certificate and --tls-key"
