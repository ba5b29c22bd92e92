"""Reconciliation of a business table with the messages about it, in a time window."""

from __future__ import annotations

from consumer_sdk.reconciliation import KINDS, Window
from halfmq_pipeline.reconcile.job import Reconcile, Reconciled
from halfmq_pipeline.reconcile.repair import Repair

__all__ = ["KINDS", "Reconcile", "Reconciled", "Repair", "Window"]
