"""`halfmq demo`: an order service, or the user's own rows, with crashes on the way, compared row for row at the end.

command.py reads the options; order_demo.py and row_demo.py are the two stories. Broker, producers and consumer
(services/) are processes of their own (children.py). What they write is in tables.py, what the broker says of it in
inspection.py, and compare.py holds the two sides against each other.
"""
