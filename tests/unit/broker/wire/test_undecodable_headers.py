"""Header values that are not UTF-8: one line a minute, without the value."""

from __future__ import annotations

import logging

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc

from broker.wire import undecodable_headers
from broker.wire.health import HealthServicer
from support.raw_calls import RawCalls

CHECK = "/grpc.health.v1.Health/Check"


async def test_their_values_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = grpc.aio.server()
    health = HealthServicer([])
    await health.serve()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    undecodable_headers.set_up()
    undecodable_headers.set_up()
    await server.start()
    with caplog.at_level(logging.INFO):
        async with RawCalls.to(f"127.0.0.1:{port}") as calls:
            answers = [await calls.call(CHECK, [("authorization", b"Bearer secret\xff")]) for _ in range(20)]
    await server.stop(None)
    assert [answer.code for answer in answers] == [0] * 20
    assert "secret" not in caplog.text
    assert len([record for record in caplog.records if "not UTF-8" in record.getMessage()]) <= 1


def test_other_lines_of_grpc_stay(caplog: pytest.LogCaptureFixture) -> None:
    undecodable_headers.set_up()
    logging.getLogger("grpc._cython.cygrpc").error("something else")
    assert "something else" in caplog.text
