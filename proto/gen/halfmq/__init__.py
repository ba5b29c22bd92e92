"""Wire protocol of halfmq; the modules below it are generated from proto/."""
