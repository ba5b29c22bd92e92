"""The services' interface to the storage: a file per noun, with the port and the values passed through it."""
