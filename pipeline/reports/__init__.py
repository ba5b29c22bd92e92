"""Reports: one HTML file with tables and plots, that needs nothing else to be read."""
