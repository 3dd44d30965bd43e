"""A table of what the clients' columns are like, by client and over all, with small cells hidden."""
