"""The tables, their names, and the encoding of rows."""
