"""Measures transactions: spark-submit examples/pipeline/transactions.py --database URL --output PATH."""

import typer

from pipeline.cli.transactions import transactions

typer.run(transactions)
