"""A fit in a folder: how it is written, and what can be read of it without the model and the clients."""
