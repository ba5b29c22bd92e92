"""Transaction analytics: durations, sources of verdicts, checks, and stuck transactions."""

from __future__ import annotations

from halfmq_pipeline.transactions.job import TransactionAnalytics, TransactionSummary

__all__ = ["TransactionAnalytics", "TransactionSummary"]
