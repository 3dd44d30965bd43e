"""The theory of Fed-ensemble under its public name; the code is in :mod:`fedbayes.inference.fed_ensemble.theory`."""

from fedbayes.inference.fed_ensemble.theory import gaussian_process_limit, interpolated, mixture_divergence, rate

__all__ = ["gaussian_process_limit", "interpolated", "mixture_divergence", "rate"]
