"""Archives topics as Parquet: spark-submit examples/pipeline/archive.py --folder PATH --topic NAME."""

import typer

from halfmq_pipeline.cli.archive import archive

typer.run(archive)
