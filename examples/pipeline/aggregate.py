"""Aggregates a topic over time windows: spark-submit examples/pipeline/aggregate.py --help."""

import typer

from halfmq_pipeline.cli.aggregate import aggregate

typer.run(aggregate)
