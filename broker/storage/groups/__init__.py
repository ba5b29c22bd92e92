"""Consumer groups: what they are, what they want, and how far each has come."""
