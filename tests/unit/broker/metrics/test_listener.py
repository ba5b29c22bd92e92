"""The listener for metrics: one path, few connections, and nobody who can keep others from it for long."""

from __future__ import annotations

import gzip
import http.client
import socket
import stat
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.errors import ConfigurationError
from broker.metrics import listener as module
from broker.metrics.listener import MOST_CONNECTIONS, MetricsListener

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = b"# HELP x X.\n# TYPE x gauge\nx 1.0\n"
PATIENCE = 20.0


@pytest.fixture
def listener() -> Iterator[MetricsListener]:
    made = MetricsListener("127.0.0.1:0", lambda: TEXT)
    yield made
    made.close()


def ask(
    listener: MetricsListener, method: str = "GET", path: str = "/metrics", **headers: str
) -> tuple[int, bytes, str]:
    with closing(http.client.HTTPConnection(listener.address, timeout=PATIENCE)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Encoding") or ""


def connected(listener: MetricsListener) -> socket.socket:
    host, port = listener.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def test_the_metrics_are_at_their_path_alone(listener: MetricsListener) -> None:
    assert ask(listener) == (200, TEXT, "")
    assert ask(listener, path="/metrics?name=x")[0] == 200
    assert ask(listener, path="/")[0] == 404
    assert ask(listener, method="POST")[0] == 501


def test_they_are_compressed_for_those_who_can_read_that(listener: MetricsListener) -> None:
    status, body, encoding = ask(listener, **{"Accept-Encoding": "gzip, deflate"})
    assert (status, encoding, gzip.decompress(body)) == (200, "gzip", TEXT)


def test_one_connection_too_many_is_closed_and_the_others_go_on(listener: MetricsListener) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(connected(listener)) for _ in range(MOST_CONNECTIONS)]
        refused = stack.enter_context(connected(listener))
        assert refused.recv(1) == b"", "closed"
        held[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b""
        while part := held[0].recv(1 << 16):
            answer += part
        assert answer.endswith(TEXT)


def test_who_sends_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.2)
    with closing(MetricsListener("127.0.0.1:0", lambda: TEXT)) as listener:
        with connected(listener) as silent:
            assert silent.recv(1) == b"", "closed after its time"
        assert ask(listener)[0] == 200


def test_an_address_in_use_names_its_setting(listener: MetricsListener) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MetricsListener(listener.address, lambda: TEXT)
    assert refused.value.field == "metrics_listen"


def test_a_file_is_for_this_user_alone_and_replaces_one_that_was_left(tmp_path: Path) -> None:
    file = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(file))
    listener = MetricsListener(f"unix:{file}", lambda: TEXT)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(file))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.0 200")
    listener.close()
    assert not file.exists()
    file.write_text("something else")
    with pytest.raises(ConfigurationError):
        MetricsListener(f"unix:{file}", lambda: TEXT)
    assert file.read_text() == "something else"


def test_a_name_that_is_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        MetricsListener(f"unix:{tmp_path / ('x' * 200)}", lambda: TEXT)


def test_who_sends_a_request_little_by_little_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_TIMEOUT", 0.4)
    with closing(MetricsListener("127.0.0.1:0", lambda: TEXT)) as listener, connected(listener) as slow:
        slow.settimeout(0.05)
        until = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < until
            try:
                slow.send(b"G")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert ask(listener)[0] == 200


def test_a_file_where_another_process_listens_is_in_use(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'metrics.sock'}"
    with closing(MetricsListener(address, lambda: TEXT)), pytest.raises(ConfigurationError) as refused:
        MetricsListener(address, lambda: TEXT)
    assert refused.value.field == "metrics_listen"


def test_a_file_that_is_another_ones_by_now_stays(tmp_path: Path) -> None:
    file = tmp_path / "metrics.sock"
    old = MetricsListener(f"unix:{file}", lambda: TEXT)
    file.unlink()
    with closing(MetricsListener(f"unix:{file}", lambda: TEXT)):
        old.close()
        assert file.exists()
