"""A fit whose clients are other processes: what is said, who says it, and what each side keeps.

Nothing here knows the engine that carries the bytes; :mod:`fedbayes.network.transport` says what one must do.
"""
