"""Tells a service manager that the broker serves: systemd's protocol of services of Type=notify (sd_notify(3))."""

from __future__ import annotations

import os
import socket


def tell_ready() -> None:
    """Sends READY=1 to the socket that NOTIFY_SOCKET names, if it names one; whoever listens there may be gone."""
    named = os.environ.get("NOTIFY_SOCKET", "")
    if not named.startswith(("/", "@")):
        return
    # An @ stands for the zero byte of Linux's abstract names.
    address = named.replace("@", "\0", 1) if named.startswith("@") else named
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        try:
            sending.sendto(b"READY=1", address)
        except OSError:
            return
