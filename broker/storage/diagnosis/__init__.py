"""Diagnosis: finds what is wrong with a database that brokers use. It reads only, and locks nothing.

One module per subject; `examination` runs the checks.
"""
