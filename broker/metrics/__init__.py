"""What the broker's parts tell its observer, as metrics for Prometheus."""
