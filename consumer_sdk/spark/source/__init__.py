"""Reading: the driver plans ranges of queues, tasks read them as Arrow record batches."""
