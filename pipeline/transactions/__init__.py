"""Outcome of transactions: how long they took, who decided them, what was asked, and what is stuck."""

from __future__ import annotations

from pipeline.transactions.job import TransactionAnalytics, TransactionSummary

__all__ = ["TransactionAnalytics", "TransactionSummary"]
