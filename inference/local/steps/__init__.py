"""Gradient steps on a client's energy."""
