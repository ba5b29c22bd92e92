"""Reconciliation that runs all the time: a service consumes what it produced, and sends what is missing.

A consumer group records which messages were delivered. A comparison looks at the rows of the business table on a
sliding window, but not at the youngest ones, and has messages sent for rows without one.
"""

from halfmq_connect.reconciliation.business import BusinessTable
from halfmq_connect.reconciliation.findings import Finding, Round
from halfmq_connect.reconciliation.reconciliation import Reconciliation
from halfmq_connect.reconciliation.settings import ReconciliationSettings

__all__ = ["BusinessTable", "Finding", "Reconciliation", "ReconciliationSettings", "Round"]
