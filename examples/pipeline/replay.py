"""Writes archived messages to a topic again.

spark-submit examples/pipeline/replay.py --folder PATH --topic NAME --into NAME --name NAME
"""

import typer

from halfmq_pipeline.cli.replay import replay

typer.run(replay)
