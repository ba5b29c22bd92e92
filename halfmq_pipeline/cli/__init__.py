"""The commands of ``halfmq pipeline``, one module each; the scripts in examples/pipeline are for spark-submit."""
