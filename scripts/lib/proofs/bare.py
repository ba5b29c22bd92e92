"""The wheel alone: both SDKs, and a command that says what it needs."""

import importlib.util
import subprocess

import client_core
import consumer_sdk
import producer_sdk

assert "site-packages" in client_core.__file__
for module in (producer_sdk, consumer_sdk):
    for name in module.__all__:
        getattr(module, name)
for absent in ("sqlalchemy", "typer", "pymysql", "pyspark"):
    assert importlib.util.find_spec(absent) is None, f"{absent} came with the wheel"
try:
    with producer_sdk.Producer("127.0.0.1:1", retry=producer_sdk.RetryConfig(deadline=1)) as producer:
        producer.send("orders", "one")
except producer_sdk.HalfmqError as error:
    refused = type(error).__name__
ran = subprocess.run(["halfmq", "serve"], check=False, capture_output=True, text=True)
assert ran.returncode == 1, ran
assert "pip install 'halfmq[broker]'" in ran.stderr, ran
print(f"the SDKs work, and say {refused} without a broker")
