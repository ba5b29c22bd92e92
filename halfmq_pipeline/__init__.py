"""The data pipeline: Spark jobs that archive, check and aggregate halfmq's messages.

Each job is a dataclass of settings with ``run(spark)``; ``halfmq pipeline`` and the scripts in examples/pipeline start
them. They need the extra ``halfmq[pipeline]``.
"""
