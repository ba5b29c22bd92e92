"""What a broker does by itself, one small class per loop."""
