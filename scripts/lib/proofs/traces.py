"""A broker that sends its spans to a collector, installed as docs/traces.md says."""

import os
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from consumer_sdk import Consumer
from producer_sdk import Admin, Producer

RECORDED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
came: list[tuple[str, bytes]] = []


class Collector(BaseHTTPRequestHandler):
    """Takes what is sent."""

    def do_POST(self) -> None:
        """Keeps the content of a request."""
        came.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


collector = HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=collector.serve_forever, daemon=True).start()
variables = {
    **os.environ,
    "HALFMQ_DATABASE": "sqlite:///halfmq.db",
    "HALFMQ_LISTEN": "127.0.0.1:0",
    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
}
with subprocess.Popen(["halfmq", "serve", "--traces"], env=variables, stdout=subprocess.PIPE, text=True) as broker:
    endpoint = broker.stdout.readline().strip()
    ready = subprocess.run(
        ["halfmq", "health", "--ready", "--endpoint", endpoint], check=False, capture_output=True, text=True
    )
    try:
        with Admin(endpoint) as admin:
            admin.create_topic("orders")
            admin.create_group("readers")
        with Producer(endpoint) as producer:
            producer.send("orders", "one", properties={"traceparent": RECORDED})
        with Consumer(endpoint, "readers", "orders") as consumer:
            next(iter(consumer)).ack()
    finally:
        # What it has not sent yet, it sends before it ends.
        broker.send_signal(signal.SIGTERM)
collector.shutdown()
assert ready.returncode == 0, ready
assert broker.returncode == 0
sent = b"".join(content for path, content in came if path == "/v1/traces")
for name in (b"halfmq-broker", b"send orders", b"deliver orders", bytes.fromhex(RECORDED[3:35])):
    assert name in sent, (name, came)
print("a broker sent its spans to a collector")
