"""Everything that touches the database; the only package with SQL.

`adapters` implement the ports of broker.services. `catalog`, `log`, `transactions`, `delivery` and `retention` each own
some tables, in plain functions over a Session. `engine` connects, and batches waiting work into one database
transaction; `tables` define the tables; `migrations` create and upgrade them.
"""
