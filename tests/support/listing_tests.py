"""Every fenced block of every page, and the test that runs it: tests/unit/test_listings.py compares the two.

Tests are named from tests/ on. Some run the same command with smaller figures or other addresses than the page's: that
the page's own are options of the command is checked besides.
"""

from __future__ import annotations

HERE = "unit/test_listings.py"
HOW_TO = "acceptance/test_how_to.py::test_the_script_and_then_the_commands_print_what_the_page_shows"
ONE_BY_ONE = "acceptance/test_python_of_pages.py"
OWN_PAGE = "test_the_page_shows_what_it_prints"
GRPCURL = "acceptance/test_grpcurl_page.py"
SQL = "conformance/test_sql_of_pages.py"
BILL = "acceptance/test_bill_of_materials.py"
CLUSTER = "spark/test_cluster.py::test_every_row_arrives_once_though_a_worker_dies"
CDC_PAGE = f"{HERE}::test_the_subscription_on_the_page_of_cdc_is_valid"
QUEUE = "ways/queue/test_side_by_side.py"
OUTBOX_ROWS = "connect/cdc/test_outbox.py::test_rows_are_messages_and_may_be_deleted_at_once"
BENCH = "acceptance/test_bench.py"
CELLS = "conformance/test_moving_command.py"
PIPELINE = "spark/pipeline/test_commands.py::test_a_topic_is_archived_replayed_and_condensed"
OPTIONS = f"{HERE}::test_commands_exist_with_their_options"
"""Of commands that need a cluster, a registry or hours: the command, its options and the files are there."""
HIDDEN_GROUP = "faults/test_clusters.py::test_a_user_who_may_not_see_the_group_is_refused"
SERVERS = "unit/broker/storage/engine/cluster/test_addresses.py::test_servers_of_a_url_are_separated_by_commas"
HAPROXY = "faults/test_behind_haproxy.py::test_a_failover_behind_one_address_loses_nothing"
ROUTER = "faults/test_behind_mysql_router.py::test_failovers_behind_one_address_lose_nothing"
NAMES = f"{HERE}::test_packages_that_are_drawn_exist"

ALL = {
    ("README.md", "python"): "unit/test_docs.py::test_readme_shows_the_examples_as_they_are",
    ("docs/admin.md", "bash text json"): f"acceptance/test_admin_page.py::{OWN_PAGE}",
    ("docs/architecture.md", "mermaid"): "unit/test_docs.py::test_the_diagram_is_that_of_the_transitions",
    ("docs/grpcurl.md", "bash text json"): f"{GRPCURL}::{OWN_PAGE}",
    ("docs/lock.md", "bash text json"): f"acceptance/test_lock_page.py::{OWN_PAGE}",
    ("docs/how-to/[!R]*.md", "python bash text json"): HOW_TO,
    ("docs/sdk.md", "python"): "acceptance/test_sdk_page.py::test_the_blocks_of_the_page_run",
    ("docs/tutorial.md", "bash text python"): f"acceptance/test_tutorial_page.py::{OWN_PAGE}",
    ("docs/ways/README.md", "python"): "ways/blocks/test_page.py::test_the_tests_on_the_page_pass",
    ("docs/ways/applied.md", "python"): "ways/applied/test_page.py::test_the_listings_run",
    ("docs/ways/fence.md", "python"): "ways/fence/test_page.py::test_the_listings_run",
    ("docs/ways/forwarding.md", "python"): "ways/forwarding/test_page.py::test_the_listing_runs",
    ("docs/ways/outbox.md", "python sql"): "ways/outbox/test_page.py::test_the_listings_run",
    ("docs/ways/queue-in-mysql.md", "sql"): f"{QUEUE}::test_the_page_shows_the_statements_that_run",
    ("docs/ways/reconciliation.md", "python"): "ways/reconciliation/test_page.py::test_the_listing_runs",
}
"""Pages all of whose blocks of some languages are run by one test."""

EACH = {
    "CONTRIBUTING.md": {"scripts/test ": OPTIONS, "HALFMQ_FAULT_ALL=1": OPTIONS, "scripts/audit": OPTIONS},
    "README.md": {
        "scripts/demo": "acceptance/test_demo.py::test_the_embedded_default_comes_to_equal_tables_and_leaves_nothing",
        "scripts/test": OPTIONS,
        "scripts/setup": "acceptance/test_transactions_readme.py::test_the_examples_work_together",
    },
    "docs/architecture.md": dict.fromkeys(
        ("halfmq_cli", "app  embedded", "consumer_sdk/spark", "broker/storage"), NAMES
    ),
    "docs/benchmarks.md": {
        "halfmq bench send": f"{BENCH}::test_send",
        "halfmq bench consume": f"{BENCH}::test_consume",
        "halfmq bench latency": f"{BENCH}::test_latency",
        "halfmq bench delay": f"{BENCH}::test_delay",
        "halfmq bench idle": f"{BENCH}::test_idle",
        "halfmq bench history": f"{BENCH}::test_history",
        "halfmq bench writes": f"{BENCH}::test_writes",
        "halfmq bench workers": f"{BENCH}::test_workers",
        "halfmq bench access": f"{BENCH}::test_access",
        "halfmq bench metrics": f"{BENCH}::test_metrics",
        "halfmq bench console": f"{BENCH}::test_console",
        "halfmq bench greedy": OPTIONS,
        "halfmq bench spark": f"{BENCH}::test_spark",
        "halfmq bench cdc": "connect/cdc/test_bench.py::test_it_prints_what_the_page_names",
        "halfmq bench relay": f"{BENCH}::test_relay",
        "halfmq bench ways": f"{BENCH}::test_some_of_the_ways",
        "HALFMQ_DB_OPTIONS=": OPTIONS,
        "scripts/kafka start": "connect/kafka/test_command.py::test_the_benchmark_counts_all_records",
    },
    "docs/console.md": {
        "halfmq access grant": "console/test_signing_in.py::test_everyone_sees_what_they_may_see",
        "pip install": "console/test_pages.py::test_every_page_is_shown_without_an_error_and_asks_nobody_else",
    },
    "docs/decisions/0030-offsets-tell-of-which-topic-they-are.md": {'{"@topics"': f"{HERE}::test_data_can_be_read"},
    "docs/doctor.md": {
        "$ halfmq doctor": "acceptance/test_doctor.py::test_what_is_critical_decides_the_status_and_comes_first",
        "CREATE USER": f"{SQL}::test_the_user_of_the_page_of_doctor_is_enough",
        "*/5 * * * *": OPTIONS,
        "define command": OPTIONS,
        "apiVersion": f"{HERE}::test_the_job_of_kubernetes_runs_a_command_that_exists",
    },
    "docs/grpcurl.md": {"halfmq serve": f"{GRPCURL}::test_the_page_starts_a_broker_with_the_times_it_is_tested_with"},
    "docs/how-to/README.md": {".venv/bin/halfmq": HOW_TO},
    "docs/how-to/official-rocketmq-clients.md": {"pip install": HOW_TO},
    "docs/how-to/spark.md": {
        "pip install": OPTIONS,
        "from consumer_sdk.spark import ack": "spark/test_leasing.py::test_the_listing_of_the_page_runs",
    },
    "docs/how-to/topics-and-retention.md": {"admin.create_topic": f"{ONE_BY_ONE}::test_topics_that_are_compressed"},
    "docs/metrics.md": {
        "scrape_configs": "acceptance/test_prometheus.py::test_prometheus_takes_the_configuration_of_the_page",
        "SELECT producer_group": f"{SQL}::test_the_statements_on_views_of_the_page_of_metrics",
    },
    "docs/clusters.md": {
        "mysql://halfmq:secret@db1:3306,db2": SERVERS,
        "GRANT SELECT ON performance_schema": HIDDEN_GROUP,
        "global": HAPROXY,
        "#!/bin/sh": HAPROXY,
        "mysqlrouter --bootstrap": ROUTER,
    },
    "docs/disk-space.md": {
        "SELECT table_name, table_rows": f"{SQL}::test_the_statements_of_the_page_of_disk_space",
        "SET SESSION lock_wait_timeout": f"{SQL}::test_the_statements_of_the_page_of_disk_space",
    },
    "docs/operations.md": {
        "INSERT INTO submission": "conformance/test_submissions.py::test_an_operator_submits_again_what_was_refused",
    },
    "docs/moving-between-cells.md": {
        "halfmq cells   ": f"{CELLS}::test_a_topic_is_moved_with_what_reads_it",
        "halfmq cells move --resume": f"{CELLS}::test_a_command_that_is_killed_is_gone_on_with",
    },
    "docs/restore.md": {
        "mysql <copy.sql": "faults/test_backup.py::test_restored_to_the_moment_before_a_mistake",
        "halfmq restored": "faults/test_backup.py::test_restored_to_the_moment_before_a_mistake",
    },
    "docs/pipeline-reconcile.md": {
        "export HALFMQ_ENDPOINT": "spark/pipeline/test_reconcile.py::test_exactly_what_is_wrong_is_found",
        "What is younger": "spark/pipeline/test_reconcile.py::test_exactly_what_is_wrong_is_found",
        "export HALFMQ_BUSINESS": OPTIONS,
        "judged 1000000": "spark/pipeline/test_reconcile.py::test_exactly_what_is_wrong_is_found",
    },
    "docs/cells.md": {
        "export HALFMQ_DATABASE": "cells/test_settings.py::test_the_setting_has_cells_with_spaces_between_them",
    },
    "docs/pipeline-transactions.md": {
        "export HALFMQ_DATABASE": "spark/pipeline/test_transactions.py::test_the_command_takes_its_settings",
        "decided: ": "spark/pipeline/test_transactions.py::test_the_summary",
    },
    "docs/pipeline.md": {
        "pip install": OPTIONS,
        "spark-submit": OPTIONS,
        "halfmq pipeline archive": PIPELINE,
        "/data/archive/": "spark/pipeline/test_archive.py::test_what_is_new_is_added",
        "halfmq pipeline compact": "spark/pipeline/test_archive.py::test_compaction_merges_files_and_mends_overlaps",
        "halfmq pipeline replay": PIPELINE,
        "halfmq pipeline aggregate": PIPELINE,
        '{"window_start"': "spark/pipeline/test_aggregate.py::test_windows_are_written_once_when_they_are_complete",
        "HALFMQ_FLIGHTS=": OPTIONS,
    },
    "docs/run.md": {
        "docker build": "unit/deploy/test_dockerfile.py::test_what_it_runs_is_a_broker_that_can_be_reached",
        "python3 -m venv": "unit/deploy/test_systemd.py::test_what_it_starts_is_known_to_the_command",
        "kubectl create": "unit/deploy/test_kubernetes.py::test_a_manifest_follows_the_schema",
    },
    "docs/sdk.md": {
        "for message in consumer": f"{ONE_BY_ONE}::test_three_ways_to_receive",
        "connection = Connection": f"{ONE_BY_ONE}::test_one_connection_for_all_clients",
        "with embedded_broker": f"{ONE_BY_ONE}::test_a_broker_for_tests",
    },
    "docs/security.md": {"scripts/audit": f"{BILL}::test_the_bill_of_materials_names_every_direct_dependency"},
    "docs/spark-clusters.md": {
        "scripts/pack-for-spark halfmq-spark.tar.gz": CLUSTER,
        "pip install": OPTIONS,
        "spark-submit --master spark:": CLUSTER,
        "spark-submit --master yarn": OPTIONS,
        "FROM spark": f"{HERE}::test_the_image_is_made_of_what_there_is",
        "spark-submit --master k8s": OPTIONS,
    },
    "docs/traces.md": {
        "POST /orders": "acceptance/test_traces.py::test_a_transaction_is_one_trace_from_prepare_to_the_handlers",
        "from opentelemetry import trace": "acceptance/test_traces.py::test_the_listings_of_the_page_run",
        "from django.core.wsgi": "acceptance/test_traces.py::test_what_a_site_sends_is_below_its_request",
        "from client_core.tracing": "acceptance/test_traces.py::test_the_listings_of_the_page_run",
        "pip install": OPTIONS,
    },
    "docs/tutorial.md": {"pip install": OPTIONS},
    "docs/ways/README.md": {"with applied.once": f"{ONE_BY_ONE}::test_applied_and_sent_in_one_transaction"},
    "docs/ways/cdc.md": {
        "pip install": "connect/cdc/test_example.py::test_the_example_publishes",
        'name = "shop"': CDC_PAGE,
        '{"op": "u"': "connect/cdc/test_rows.py::test_images_source_and_schema",
        "INSERT INTO halfmq_cdc_outbox": OUTBOX_ROWS,
    },
    "docs/ways/fence.md": {
        "maker = sessionmaker": f"{ONE_BY_ONE}::test_a_session_that_a_web_framework_hands_in",
        "from django.db": "ways/fence/test_django.py::test_the_view_on_the_page_runs",
    },
    "docs/ways/kafka.md": {
        "pip install": "connect/kafka/test_command.py::test_a_file_and_options",
        "from halfmq_connect.kafka": f"{ONE_BY_ONE}::test_bridges_are_made_with_these_arguments",
        'name = "shop"': "connect/kafka/test_command.py::test_a_file_and_options",
    },
    "docs/ways/outbox.md": {
        "halfmq relay --database mysql": "acceptance/test_relay_command.py::test_failed_messages_are_skipped",
        "halfmq relay --database-file": "acceptance/test_relay_command.py::test_it_relays_until_it_is_told_to_stop",
        "from producer_sdk.outbox import Outbox": "ways/outbox/test_same_server.py::test_the_listing_of_the_page_runs",
        "GRANT INSERT": "ways/outbox/test_same_server.py::test_the_right_to_insert_is_enough",
        "INSERT INTO halfmq.submission": "ways/outbox/test_same_server.py::test_the_listing_of_the_page_runs",
    },
    "docs/ways/own-listener.md": dict.fromkeys(
        ("class Orders", "with producer.transaction"), f"{ONE_BY_ONE}::test_an_own_listener"
    ),
    "docs/ways/queue-in-mysql.md": {
        "article: 1604": f"{QUEUE}::test_with_kills_and_freezes",
        ".venv/bin/python": "ways/queue/test_example.py::test_a_worker_that_dies_is_replaced",
    },
}
"""The other blocks by the beginning of their first line, and what runs them."""
