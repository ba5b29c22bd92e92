"""The tables, their names, and what their rows mean."""
