"""The connection of a command: options over environment over context over defaults."""

from __future__ import annotations

import os
from pathlib import Path

from client_core.connection import BearerToken, Connection, RetryConfig, TlsConfig, TokenFile
from halfmq_cli.admin.context_file import Context, read_contexts
from halfmq_cli.admin.ending import wrong

DEFAULT = "127.0.0.1:8085"
"""Where `halfmq serve` listens unless told otherwise."""

_VARIABLES = {
    "endpoint": "HALFMQ_ENDPOINT",
    "admin_endpoint": "HALFMQ_ADMIN_ENDPOINT",
    "tls_ca": "HALFMQ_TLS_CA",
    "tls_certificate": "HALFMQ_TLS_CERTIFICATE",
    "tls_key": "HALFMQ_TLS_KEY",
    "token": "HALFMQ_TOKEN",
    "token_file": "HALFMQ_TOKEN_FILE",
}


def settings_of(options: Context, context: str | None) -> Context:
    """The settings that count.

    A context that an option names outranks the environment. One that was chosen earlier, by `context use`, counts as a
    whole or, where an option or the environment says where brokers are, not at all: its credentials are for its own
    brokers.

    Args:
        options: What the options say.
        context: The context that --context names, if any.

    Raises:
        Ended: There is no such context, or the file cannot be used.
    """
    if context is not None:
        return options.over(read_contexts().context(context))
    environment = Context.of({name: os.environ.get(each) for name, each in _VARIABLES.items()})
    given = options.over(environment)
    if name := os.environ.get("HALFMQ_CONTEXT"):
        return given.over(read_contexts().context(name))
    if given.endpoint is not None or given.admin_endpoint is not None:
        return given
    contexts = read_contexts()
    return given if contexts.current is None else given.over(contexts.context(contexts.current))


def connections_of(settings: Context, timeout: float) -> tuple[Connection, Connection]:
    """Connections to the address of clients, and to that of operators, which may be the same one.

    Raises:
        Ended: A file cannot be read.
        ConfigurationError: A setting cannot work.
    """
    tls = _tls(settings)
    token = _token(settings)
    if token is not None and tls is None and not settings.token_without_tls:
        wrong("token", "it goes over TLS only: --tls or --tls-ca; --token-without-tls shows it all the same")
    auth = None if token is None else BearerToken(token, without_tls=bool(settings.token_without_tls))
    if timeout <= 0:
        wrong("--timeout", "is a number of seconds, more than 0")
    retry = RetryConfig(deadline=timeout, attempt_timeout=timeout)
    clients = Connection(settings.endpoint or settings.admin_endpoint or DEFAULT, tls, retry, auth)
    if settings.admin_endpoint is None:
        return clients, clients
    return clients, Connection(settings.admin_endpoint, tls, retry, auth)


def _tls(settings: Context) -> TlsConfig | None:
    files = (settings.tls_ca, settings.tls_certificate, settings.tls_key)
    if not (settings.tls or settings.tls_server_name or any(files)):
        return None
    content: list[bytes | None] = []
    for name, file in zip(("--tls-ca", "--tls-certificate", "--tls-key"), files, strict=True):
        try:
            content.append(None if file is None else Path(file).expanduser().read_bytes())
        except OSError as error:
            wrong(name, f"{file!r} cannot be read: {error.strerror}")
    return TlsConfig(content[0], content[1], content[2], settings.tls_server_name)


def _token(settings: Context) -> str | TokenFile | None:
    given = [name for name in ("token", "token_file", "token_variable") if getattr(settings, name) is not None]
    if len(given) > 1:
        wrong("token", f"{' and '.join(given)} both say what it is: give one of them")
    if settings.token_file is not None:
        return TokenFile(Path(settings.token_file).expanduser())
    if settings.token_variable is not None:
        token = os.environ.get(settings.token_variable)
        if not token:
            wrong("token", f"the environment variable {settings.token_variable}, which is to have it, is empty")
        return token
    return settings.token
