"""The client's half of a fit over a network."""
