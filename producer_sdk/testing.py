"""A broker inside the test process, for users' tests: no database to install, nothing to clean up."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from halfmq.v1 import admin_pb2, admin_pb2_grpc
from producer_sdk.errors import HalfmqError

try:
    import pytest
except ModuleNotFoundError:  # embedded_broker() works without it
    pytest = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.app import EmbeddedBroker

__all__ = ["embedded_broker", "halfmq_broker"]


@contextmanager
def embedded_broker(
    topics: Iterable[str] = (), groups: Iterable[str] = (), *, data_dir: Path | None = None, **settings: Any
) -> Iterator[EmbeddedBroker]:
    """Runs a broker in this process, on storage in a directory that is gone afterwards.

    Args:
        topics: Topics to create before the block begins.
        groups: Consumer groups to create before the block begins.
        data_dir: Where to keep the data; None: in a temporary directory.
        settings: Further settings of the broker.

    Yields:
        The broker; clients connect to its ``endpoint``.

    Raises:
        HalfmqError: The broker's dependencies are not installed.
    """
    try:
        from broker.app import EmbeddedBroker  # noqa: PLC0415 - the SDKs work without the broker's dependencies
    except ModuleNotFoundError as error:
        msg = f"the embedded broker needs {error.name}, which is not installed; run: pip install 'halfmq[broker]'"
        raise HalfmqError(msg) from error
    with (
        tempfile.TemporaryDirectory(prefix="halfmq-", ignore_cleanup_errors=True) as temporary,
        EmbeddedBroker(data_dir=data_dir or Path(temporary), **settings) as broker,
    ):
        _create(broker.endpoint, topics, groups)
        yield broker


def _create(endpoint: str, topics: Iterable[str], groups: Iterable[str]) -> None:
    with grpc.insecure_channel(endpoint) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        for topic in topics:
            _unless_it_exists(admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic)))
        for group in groups:
            request = admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=group))
            _unless_it_exists(admin.CreateGroup, request)


def _unless_it_exists(call: Any, request: Any) -> None:
    try:
        call(request, timeout=10.0)
    except grpc.RpcError as error:
        # Kept from an earlier run when the caller named a data_dir.
        if not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise


if pytest is not None:

    @pytest.fixture
    def halfmq_broker() -> Iterator[EmbeddedBroker]:
        """An embedded broker that creates topics and groups as they are used; import it into a conftest.py."""
        with embedded_broker() as broker:
            yield broker
