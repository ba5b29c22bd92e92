"""The rules of halfmq, without I/O: what a message is, how a transaction moves, when to check, who holds a lease.

Times are whole microseconds since 1970 (UTC) of the database's clock; durations are whole microseconds.
"""
