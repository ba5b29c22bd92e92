"""Reading: the driver asks the brokers and plans ranges of queues, tasks read them as Arrow record batches."""
