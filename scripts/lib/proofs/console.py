"""A broker with the console: its pages and their files are in the wheel."""

import os
import re
import signal
import subprocess
import urllib.request

variables = {
    **os.environ,
    "HALFMQ_DATABASE": "sqlite:///halfmq.db",
    "HALFMQ_LISTEN": "127.0.0.1:0",
    "HALFMQ_CONSOLE_LISTEN": "127.0.0.1:0",
}
with subprocess.Popen(["halfmq", "serve"], env=variables, stdout=subprocess.PIPE, text=True) as broker:
    address = [broker.stdout.readline().strip() for _ in range(2)][1]
    address = address if address.startswith("http") else f"http://{address}"
    try:
        with urllib.request.urlopen(address, timeout=30) as page:
            text = page.read().decode()
        files = re.findall(r'(?:href|src)="(/[^"]*\.(?:css|js))', text)
        for file in files:
            with urllib.request.urlopen(f"{address.rstrip('/')}{file}", timeout=30) as asset:
                assert asset.read(), file
    finally:
        broker.send_signal(signal.SIGTERM)
assert files, text
assert broker.returncode == 0
print(f"the console has a page with {len(files)} files")
