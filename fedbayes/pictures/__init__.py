"""Pictures of a fit and of what it was asked; they need matplotlib (``fedbayes[demo]``)."""
