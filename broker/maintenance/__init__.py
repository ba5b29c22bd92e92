"""Background work of a broker, one small class per loop."""
