"""Everything that touches the database; the only room that knows SQL.

`adapters` put all of it behind the ports of broker.services. `catalog`, `log`, `transactions`, `delivery` and
`retention` each speak for some tables, in plain functions over a Session. `engine` connects, and merges what waits into
one database transaction; `tables` are the tables; `migrations` make and change them.
"""
