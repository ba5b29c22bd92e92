"""`halfmq health`: asks a broker how it is, for containers, systemd and load balancers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, NoReturn

import grpc
import typer
from grpc_health.v1 import health_pb2

from client_core.connection.tls import TlsConfig
from client_core.errors import ConfigurationError

_CHECK = "/grpc.health.v1.Health/Check"
_READY = "ready"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_PAUSE = 0.2
_WRONG = 2
"""Status of a command whose options are wrong, as everywhere."""


Authority = Annotated[Path | None, typer.Option(help="Encrypt; CA of the broker's certificate (PEM file).")]
Certificate = Annotated[Path | None, typer.Option(help="Certificate to show (PEM file).")]
Key = Annotated[Path | None, typer.Option(help="Its private key (PEM file).")]


def health(
    endpoint: Annotated[str, typer.Option(envvar="HALFMQ_ENDPOINT", help="The broker, host:port.")] = "127.0.0.1:8085",
    ready: Annotated[
        bool, typer.Option("--ready", help="Is it ready: can its database be used, and does it not drain?")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 3.0,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to go on asking until it serves.")] = 0.0,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, with the system's authorities.")] = False,
    tls_ca: Authority = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    tls_server_name: Annotated[
        str | None, typer.Option(help="Name to expect in the broker's certificate [the endpoint's host].")
    ] = None,
) -> None:
    """Ask a broker whether it serves; exit status 0: yes, 1: no, or no answer.

    Without --ready the answer is of the process alone, and its database may be away.
    """
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500)]
    if tls or tls_ca or tls_certificate or tls_key or tls_server_name:
        config = _tls(tls_ca, tls_certificate, tls_key, tls_server_name)
        if tls_server_name:
            options.append(("grpc.ssl_target_name_override", tls_server_name))
        channel = grpc.secure_channel(endpoint, config.credentials(), options)
    else:
        channel = grpc.insecure_channel(endpoint, options)
    until = time.monotonic() + wait
    with channel:
        said, serves = _ask(channel, _READY if ready else "", timeout)
        while not serves and time.monotonic() < until:
            time.sleep(_PAUSE)
            said, serves = _ask(channel, _READY if ready else "", timeout)
    typer.echo(f"{endpoint}: {said}")
    if not serves:
        raise typer.Exit(1)


def _ask(channel: grpc.Channel, service: str, timeout: float) -> tuple[str, bool]:
    ask = channel.unary_unary(
        _CHECK,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    try:
        answer = ask(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}", False
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status), answer.status == _SERVING


def _tls(ca: Path | None, certificate: Path | None, key: Path | None, server_name: str | None) -> TlsConfig:
    try:
        authority, shown, its_key = [file.read_bytes() if file else None for file in (ca, certificate, key)]
        return TlsConfig(authority, shown, its_key, server_name)
    except OSError as error:
        _refuse(f"{error.filename}: {error.strerror}")
    except ConfigurationError as error:
        _refuse(str(error))


def _refuse(text: str) -> NoReturn:
    typer.echo(f"halfmq health: {text}", err=True)
    raise typer.Exit(_WRONG)
