"""The rules by which rows of a business table are compared with the messages about them.

Both forms keep them: the job on Spark (halfmq_pipeline.reconcile) and the one that runs all the time
(halfmq_connect.reconciliation).
"""

from consumer_sdk.reconciliation.kinds import (
    DUPLICATE,
    IN_DOUBT,
    KINDS,
    MESSAGE_WITHOUT_ROW,
    MISMATCH,
    ROW_WITHOUT_MESSAGE,
    WRONG,
)
from consumer_sdk.reconciliation.log import HalfOfTopic, halves_of_topic, kept_since
from consumer_sdk.reconciliation.repairs import BUSINESS_TIME, REPAIRED_BY, business_time_text, repair_id
from consumer_sdk.reconciliation.window import Window

__all__ = [
    "BUSINESS_TIME",
    "DUPLICATE",
    "IN_DOUBT",
    "KINDS",
    "MESSAGE_WITHOUT_ROW",
    "MISMATCH",
    "REPAIRED_BY",
    "ROW_WITHOUT_MESSAGE",
    "WRONG",
    "HalfOfTopic",
    "Window",
    "business_time_text",
    "halves_of_topic",
    "kept_since",
    "repair_id",
]
