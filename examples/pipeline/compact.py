"""Merges the small files of an archive: spark-submit examples/pipeline/compact.py --folder PATH."""

import typer

from halfmq_pipeline.cli.archive import compact

typer.run(compact)
