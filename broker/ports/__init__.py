"""What the services ask of the storage: a file for each noun, with the port and the values that cross it."""
