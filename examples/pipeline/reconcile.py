"""Compares a table with the messages about its rows.

spark-submit examples/pipeline/reconcile.py --database URL --table NAME --topic NAME --from TIME --output PATH
"""

import typer

from halfmq_pipeline.cli.reconcile import reconcile

typer.run(reconcile)
