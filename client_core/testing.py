"""A broker inside the test process, for users' tests: no database to install, no clean-up."""

from __future__ import annotations

import dataclasses
import importlib.util
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from client_core.arguments import check_text
from client_core.errors import ConfigurationError, HalfmqError
from halfmq.v1 import admin_pb2, admin_pb2_grpc

try:
    import pytest
except ModuleNotFoundError:  # embedded_broker() works without it
    pytest = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.embedded import EmbeddedBroker

__all__ = ["embedded_broker"]


@contextmanager
def embedded_broker(
    topics: str | Iterable[str] = (),
    groups: str | Iterable[str] = (),
    *,
    data_dir: Path | None = None,
    **settings: Any,
) -> Iterator[EmbeddedBroker]:
    """Runs a broker in this process, on SQLite in memory: it starts within tens of milliseconds.

    SQLite keeps at most 1 GiB in memory; a test with more messages gives a ``data_dir``.

    Other topics and groups are created when first named; with ``auto_create=False`` they are refused, as by a broker
    with default settings.

    Args:
        topics: Topics to create before the block begins; one or several.
        groups: Consumer groups to create before the block begins; one or several.
        data_dir: Folder to keep the data in, for tests that stop a broker and start another one; None: in memory.
        settings: Further settings of the broker, such as ``first_check=0.1``, or ``database="mysql://..."`` to use a
            server; their names are those of its configuration file.

    Yields:
        The broker; clients connect to its ``endpoint``.

    Raises:
        HalfmqError: The broker's dependencies are not installed, or a module of the same name hides it.
        ConfigurationError: A name or a setting is invalid.
    """
    _refuse_another_broker()
    try:
        # The SDKs work without the broker's dependencies.
        from broker.config import BrokerConfig  # noqa: PLC0415
        from broker.config_sources import OLD_NAMES  # noqa: PLC0415
        from broker.embedded import EmbeddedBroker  # noqa: PLC0415
        from broker.errors import BrokerError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        msg = f"the embedded broker needs {error.name}, which is not installed; run: pip install 'halfmq[broker]'"
        raise HalfmqError(msg) from error
    known = [field.name for field in dataclasses.fields(BrokerConfig)]
    for name in settings:
        if name in OLD_NAMES:
            msg = f"the setting {name} is now {OLD_NAMES[name]}"
            raise ConfigurationError(msg, field=name)
        if name not in known:
            msg = f"{name} is no setting of the broker; there are: {', '.join(known)}"
            raise ConfigurationError(msg, field=name)
    wanted = {"topics": _names("topics", topics), "groups": _names("groups", groups)}
    if settings.get("tls_certificate") and not settings.get("tls_optional"):
        for name, names in wanted.items():
            if names:
                msg = f"{name} are created without TLS: leave them out with tls_certificate, or set tls_optional=True"
                raise ConfigurationError(msg, field=name)
    with ExitStack() as running:
        try:
            broker = running.enter_context(EmbeddedBroker(data_dir=data_dir, **settings))
        except BrokerError as error:
            raise ConfigurationError(str(error), reason=error.reason, field=error.field) from error
        except TypeError as error:
            msg = f"a setting of the broker is of the wrong kind ({error}): {settings}"
            raise ConfigurationError(msg) from error
        _create(broker.endpoint, **wanted)
        yield broker


def _refuse_another_broker() -> None:
    """Finds the file that `import broker` would load, without running it."""
    found = importlib.util.find_spec("broker")
    own = Path(__file__).parents[1] / "broker"
    if found is None or not found.origin or Path(found.origin).parent.resolve() == own.resolve():
        return
    msg = (
        f"{found.origin} hides halfmq's package broker, which has the same name; rename it, or take its folder off the"
        " path that Python imports from"
    )
    raise HalfmqError(msg)


def _names(setting: str, names: str | Iterable[str]) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        check_text(setting, name, "is one name or several")
    return listed


def _create(endpoint: str, topics: Iterable[str], groups: Iterable[str]) -> None:
    with grpc.insecure_channel(endpoint) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        for name in topics:
            topic = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name))
            _unless_it_exists("topics", name, admin.CreateTopic, topic)
        for name in groups:
            group = admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=name))
            _unless_it_exists("groups", name, admin.CreateGroup, group)


def _unless_it_exists(setting: str, name: str, call: Any, request: Any) -> None:
    try:
        call(request, timeout=10.0)
    except grpc.RpcError as error:
        # Kept from an earlier run when the caller named a data_dir.
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.ALREADY_EXISTS:
            return
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            msg = f"{setting}: {name!r} cannot be created: {error.details()}"
            raise ConfigurationError(msg, code=error.code(), field=setting) from error
        raise


if pytest is not None:
    __all__ += ["halfmq_broker"]

    @pytest.fixture
    def halfmq_broker() -> Iterator[EmbeddedBroker]:
        """An embedded broker that creates topics and groups as they are used; import it into a conftest.py."""
        with embedded_broker() as broker:
            yield broker
