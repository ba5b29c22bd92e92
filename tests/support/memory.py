"""How much memory a process has in use, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

MIB = 1024 * 1024


def resident(process_id: int, *, peak: bool = False) -> int:
    """Bytes of a process that are in memory; `peak`: the most that were since `forget_peak`."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{process_id}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {process_id} has ended")


def forget_peak(process_id: int) -> None:
    """Begins to count the peak from here."""
    Path(f"/proc/{process_id}/clear_refs").write_text("5", encoding="ascii")
