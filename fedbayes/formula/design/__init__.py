"""The columns of a formula, the same at every client, and what clients add up so that they are."""
