"""docs/metrics.md repeats names, types and labels by hand, and tells of RocketMQ's: compared with what is so."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest

from docs_site import metrics
from docs_site.pages import CHECKOUT

PAGE = (CHECKOUT / "docs" / "metrics.md").read_text()
OURS = {name: (kind, labels) for heading in metrics.SOURCES for name, kind, labels, _ in metrics.found_in(heading)}
ROCKETMQ = re.findall(
    r"\w+",
    """
rocketmq_processor_watermark rocketmq_broker_permission rocketmq_topic_number rocketmq_consumer_group_number
rocketmq_messages_in_total rocketmq_messages_out_total rocketmq_throughput_in_total rocketmq_throughput_out_total
rocketmq_message_size rocketmq_topic_create_execution_time rocketmq_consumer_group_create_execution_time
rocketmq_producer_connections rocketmq_consumer_connections rocketmq_consumer_lag_messages rocketmq_consumer_lag_latency
rocketmq_consumer_inflight_messages rocketmq_consumer_queueing_latency rocketmq_consumer_ready_messages
rocketmq_send_to_dlq_messages_total rocketmq_commit_messages_total rocketmq_rollback_messages_total
rocketmq_finish_message_latency rocketmq_half_messages

rocketmq_pop_buffer_scan_time_consume rocketmq_pop_revive_in_message_total rocketmq_pop_revive_out_message_total
rocketmq_pop_revive_retry_messages_total rocketmq_pop_revive_lag rocketmq_pop_revive_latency
rocketmq_pop_offset_buffer_size rocketmq_pop_checkpoint_buffer_size

role dledger_disk_usage active_broker_num request_total dledger_op_total election_total request_latency
dledger_op_latency

rocketmq_proxy_up rocketmq_rpc_latency

rocketmq_storage_size rocketmq_storage_flush_behind_bytes rocketmq_storage_dispatch_behind_bytes
rocketmq_storage_message_reserve_time rocketmq_timer_enqueue_lag rocketmq_timer_enqueue_latency
rocketmq_timer_dequeue_lag rocketmq_timer_dequeue_latency rocketmq_timing_messages rocketmq_timer_enqueue_total
rocketmq_timer_dequeue_total rocketmq_timer_message_snapshot rocketmq_delay_message_latency
rocketmq_rocksdb_bytes_written rocketmq_rocksdb_bytes_read rocketmq_rocksdb_times_written_self
rocketmq_rocksdb_times_written_other rocketmq_rocksdb_rate_cache_hit rocketmq_rocksdb_times_compressed
rocketmq_rocksdb_read_amplification_bytes rocketmq_rocksdb_times_read

rocketmq_tiered_store_api_latency rocketmq_tiered_store_provider_rpc_latency
rocketmq_tiered_store_provider_upload_bytes rocketmq_tiered_store_provider_download_bytes
rocketmq_tiered_store_dispatch_behind rocketmq_tiered_store_dispatch_latency
rocketmq_tiered_store_messages_dispatch_total rocketmq_tiered_store_messages_out_total
rocketmq_tiered_store_get_message_fallback_total rocketmq_tiered_store_read_ahead_cache_count
rocketmq_tiered_store_read_ahead_cache_bytes rocketmq_tiered_store_read_ahead_cache_access_total
rocketmq_tiered_store_read_ahead_cache_hit_total
""",
)
"""RocketMQ 5.3.3: BrokerMetricsConstant, PopMetricsConstant, ControllerMetricsConstant, ProxyMetricsConstant,
RemotingMetricsConstant, DefaultStoreMetricsConstant and TieredStoreMetricsConstant."""


def rows_of(text: str) -> list[list[str]]:
    """The cells of the rows of all tables, without their heads."""
    rows = [re.split(r"\s*\|\s*", line.strip("| \n")) for line in re.findall(r"^\| .*", text, re.M)]
    return [row for row in rows if row[0].startswith("`")]


def of_rocketmq() -> list[list[str]]:
    return rows_of(PAGE.partition("\n## RocketMQ's metrics\n")[2].partition("\n## ")[0])


def named(cell: str) -> list[str]:
    return re.findall(r"`([\w*]+)`", cell)


def shown() -> dict[str, tuple[str, str]]:
    """Type and labels of each metric, as the page has them."""
    before = PAGE.partition("\n## RocketMQ's metrics\n")[0]
    lines = re.findall(r"^\| `(?:halfmq|rocketmq)_\w+` \|.*", before, re.M)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {name.strip("`"): (kind, labels) for name, kind, labels, _ in rows}


def test_types_and_labels_are_those_of_the_code() -> None:
    sampled = (CHECKOUT / "broker" / "metrics" / "sampled.py").read_text()
    told = {}
    for name, (kind, labels) in shown().items():
        own = re.sub(r" ?\(RocketMQ: [^)]*\)", "", labels)
        told[name] = kind, ", ".join(f"`{each}`" for each in own.split(", ") if each)
    expected = {
        name: (f"{kind}, sampled" if f'"{name}"' in sampled else kind, labels) for name, (kind, labels) in OURS.items()
    }
    assert told == expected


def test_each_metric_of_rocketmq_has_a_row() -> None:
    names = [name for cell, *_ in of_rocketmq() for name in named(cell)]
    assert len(set(names)) == len(names)
    assert {each for each in ROCKETMQ if sum(fnmatchcase(each, name) for name in names) != 1} == set()
    assert {name for name in names if not any(fnmatchcase(each, name) for each in ROCKETMQ)} == set()


def test_each_of_our_metrics_with_such_a_name_is_one_of_rocketmqs() -> None:
    assert {name for name in OURS if name.startswith("rocketmq_")} <= set(ROCKETMQ)


@pytest.mark.parametrize("row", of_rocketmq(), ids=lambda row: row[0])
def test_a_row_names_what_there_is(row: list[str]) -> None:
    theirs, here = row
    same = {name for name in named(theirs) if name in OURS}
    assert same == (set(named(theirs)) if here.startswith("the same") else set())
    assert {name for name in named(here) if name.startswith(("halfmq_", "rocketmq_"))} <= OURS.keys()
    if not here.startswith("the same"):
        assert here.startswith(("none: ", "`")), "another one, or why there is none"
