"""Rounds of communication: the loop, executors, messages, checkpoints."""
