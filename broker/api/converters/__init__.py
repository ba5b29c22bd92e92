"""Between the wire and the domain. Pure functions."""
