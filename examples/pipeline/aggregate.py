"""Condenses a topic into figures of windows of time: spark-submit examples/pipeline/aggregate.py --help."""

import typer

from consumer_sdk.spark.pipeline.cli.aggregate import aggregate

typer.run(aggregate)
