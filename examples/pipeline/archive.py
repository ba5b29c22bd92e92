"""Archives topics as Parquet: spark-submit examples/pipeline/archive.py --folder PATH --topic NAME."""

import typer

from consumer_sdk.spark.pipeline.cli.archive import archive

typer.run(archive)
