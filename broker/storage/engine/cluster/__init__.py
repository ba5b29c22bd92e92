"""A database that is several servers: which of them accepts writes, and what an acknowledged commit survives there."""
