"""A run in which sites agree on a regression by secure sums, before anything is fitted."""
