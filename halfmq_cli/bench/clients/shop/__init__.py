"""The shop of `halfmq bench ways`: orders in a database, and every way in which a message goes with each."""
