"""How long tests wait for what only a hang keeps from coming."""

from __future__ import annotations

HANG = 500.0
"""Seconds for a process of its own, on a machine however slow and busy; pytest ends a test after 600 of them."""
