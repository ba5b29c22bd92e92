from __future__ import annotations

import subprocess
import sys

import pytest

import consumer_sdk
from consumer_sdk import AsyncConsumer, ConfigurationError, Consumer
from consumer_sdk.testing import embedded_broker as for_consumers
from producer_sdk import HalfmqError
from producer_sdk.testing import embedded_broker as for_producers


def test_the_public_names_are_exactly_these() -> None:
    public = {
        name
        for name, value in vars(consumer_sdk).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(("consumer_sdk.", "client_core."))
    }
    assert public == set(consumer_sdk.__all__)
    assert list(consumer_sdk.__all__) == sorted(consumer_sdk.__all__)
    assert all(getattr(consumer_sdk, name).__doc__ for name in consumer_sdk.__all__)


def test_importing_the_sdk_loads_neither_broker_nor_sqlalchemy() -> None:
    code = (
        "import sys, consumer_sdk; "
        "bad = {'broker', 'sqlalchemy', 'pymysql', 'alembic', 'pytest'} & {m.split('.')[0] for m in sys.modules}; "
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_test_kit_is_that_of_the_producers() -> None:
    assert for_consumers is for_producers


def test_the_test_kit_works_without_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; "
        "from consumer_sdk.testing import *; from producer_sdk.testing import *; "
        "assert embedded_broker and 'halfmq_broker' not in globals()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_test_kit_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "broker.embedded", None)
    with pytest.raises(HalfmqError, match=r"pip install 'halfmq\[broker\]'"), for_consumers():
        pass


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("group", ""),
        ("topics", ()),
        ("topics", ["a", ""]),
        ("prefetch", 0),
        ("prefetch", 100_001),
        ("prefetch", 1.5),
        ("group", 5),
        ("group", "\udc80"),
        ("topics", None),
        ("topics", 5),
        ("topics", b"orders"),
        ("topics", ["a"] * 1_001),
        ("lease_duration", 0),
        ("lease_duration", 0.09),
        ("lease_duration", 43_201),
        ("lease_duration", 1e30),
        ("lease_duration", float("nan")),
        ("lease_duration", float("inf")),
        ("lease_duration", "30"),
        ("client_id", 5),
        ("client_id", "x" * 256),
        ("client_id", "\udc80"),
        ("client_id", "a\nb"),
        ("close_grace", "a"),
        ("retry", {"deadline": 5}),
        ("tls", {}),
        ("endpoint", None),
        ("longest_hold", float("nan")),
        ("endpoint", "nowhere"),
    ],
)
@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_settings_that_cannot_work_are_refused(kind: type, setting: str, value: object) -> None:
    settings = {"endpoint": "a:1", "group": "g", "topics": "orders", setting: value}
    with pytest.raises(ConfigurationError) as caught:
        kind(**settings)
    assert caught.value.field == setting
