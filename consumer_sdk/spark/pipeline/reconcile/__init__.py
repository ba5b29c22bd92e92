"""Reconciliation: a business table against the messages about it, in a window of time."""

from __future__ import annotations

from consumer_sdk.spark.pipeline.reconcile.job import Reconcile, Reconciled
from consumer_sdk.spark.pipeline.reconcile.kinds import KINDS
from consumer_sdk.spark.pipeline.reconcile.repair import Repair
from consumer_sdk.spark.pipeline.reconcile.window import Window

__all__ = ["KINDS", "Reconcile", "Reconciled", "Repair", "Window"]
