"""The commands ``halfmq relay``, ``halfmq cdc`` and ``halfmq bridge``, one module each."""
