"""`halfmq demo`: an order service, or the user's own rows, with crashes in between, compared row for row at the end.

command.py reads the options; order_demo.py and row_demo.py are the two scenarios. Broker, producers and consumer
(services/) are separate processes (children.py). Their tables are in tables.py, the broker's view in inspection.py, and
compare.py compares the two sides.
"""
