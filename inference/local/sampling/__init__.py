"""Draws of a client's tilted density."""
