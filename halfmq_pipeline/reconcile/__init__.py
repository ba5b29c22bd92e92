"""Reconciliation of a business table with the messages about it, in a time window."""

from __future__ import annotations

from halfmq_pipeline.reconcile.job import Reconcile, Reconciled
from halfmq_pipeline.reconcile.kinds import KINDS
from halfmq_pipeline.reconcile.repair import Repair
from halfmq_pipeline.reconcile.window import Window

__all__ = ["KINDS", "Reconcile", "Reconciled", "Repair", "Window"]
