"""Clients' data as users give them: read as numbers, checked, explained and padded."""
