"""Everything that touches the database; the only room that knows SQL.

`engine` connects and prepares sessions, `dialect` holds what differs between MySQL, MariaDB and SQLite, `schema` the
tables; `halves`, `verdicts`, `checks`, `log`, `leases`, `groups`, `topics`, `retention` each speak for some tables, in
plain functions over a Session. `group_commit` merges what waits into one database transaction, and `store` puts all
of it behind the ports of broker.services.
"""
