"""Writing: rows become half messages of epochs, and micro-batches are written to several outputs, each once."""
