"""Reconciliation of a business table with the messages about it, in a time window."""

from __future__ import annotations

from pipeline.reconcile.job import Reconcile, Reconciled
from pipeline.reconcile.kinds import KINDS
from pipeline.reconcile.repair import Repair
from pipeline.reconcile.window import Window

__all__ = ["KINDS", "Reconcile", "Reconciled", "Repair", "Window"]
