"""Calls of every service have a bound, except those that work when there is too much of the rest."""

from __future__ import annotations

import pytest

from broker.server import SERVICES
from broker.wire.interceptor import BOUNDED, LOOK_UPS, OPERATORS


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_in_one_class(service: str) -> None:
    assert f"/{service}/" in {*BOUNDED, LOOK_UPS, OPERATORS}
