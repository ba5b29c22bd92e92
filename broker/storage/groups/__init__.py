"""Consumer groups: settings, filters, and progress."""
