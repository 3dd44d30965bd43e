"""A program and its clients, checked, split and padded."""
