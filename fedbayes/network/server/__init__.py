"""The server's half of a fit over a network."""
