"""The commands of ``halfmq pipeline``, one module each; the scripts in examples/pipeline hand them to spark-submit."""
