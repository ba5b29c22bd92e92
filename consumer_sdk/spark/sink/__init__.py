"""Writing: rows become half messages of epochs, and micro-batches go to several outputs, each once."""
