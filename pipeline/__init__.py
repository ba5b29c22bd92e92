"""The data pipeline: jobs on Spark that keep, check and condense what goes through halfmq.

Each job is a dataclass of settings with ``run(spark)``; ``halfmq pipeline`` and the scripts in examples/pipeline start
them. They need the extra ``halfmq[pipeline]``.
"""
