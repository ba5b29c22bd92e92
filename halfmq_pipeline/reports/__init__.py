"""Reports: one self-contained HTML file with tables and plots."""
