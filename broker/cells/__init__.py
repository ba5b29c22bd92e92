"""Routes calls to cells: each cell is a database with a broker's parts of its own.

A router has the methods of the servicers of a service, finds out where the topics, groups and sinks are that a call
names, and calls the servicer of that cell. Calls of many items are taken apart, and their answers put together.
"""
