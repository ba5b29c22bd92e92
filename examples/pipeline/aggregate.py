"""Condenses a topic into figures of windows of time: spark-submit examples/pipeline/aggregate.py --help."""

import typer

from pipeline.cli.aggregate import aggregate

typer.run(aggregate)
