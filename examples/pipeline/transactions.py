"""Measures transactions: spark-submit examples/pipeline/transactions.py --database URL --output PATH."""

import typer

from halfmq_pipeline.cli.transactions import transactions

typer.run(transactions)
