"""Change data capture: committed transactions of MySQL and MariaDB, read from the binlog, as halfmq transactions."""
