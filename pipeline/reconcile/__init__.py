"""Reconciliation: a business table against the messages about it, in a window of time."""

from __future__ import annotations

from pipeline.reconcile.job import Reconcile, Reconciled
from pipeline.reconcile.kinds import KINDS
from pipeline.reconcile.repair import Repair
from pipeline.reconcile.window import Window

__all__ = ["KINDS", "Reconcile", "Reconciled", "Repair", "Window"]
