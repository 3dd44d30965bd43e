"""Pictures of a fit under their public name; the code is in :mod:`fedbayes.results.plots`."""

from fedbayes.results.plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    plot_client_correlation,
    plot_comparison,
    plot_fairness,
    plot_influence,
    plot_merge,
    plot_rounds,
    plot_shrinkage,
    require_matplotlib,
)

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "plot_client_correlation",
    "plot_comparison",
    "plot_fairness",
    "plot_influence",
    "plot_merge",
    "plot_rounds",
    "plot_shrinkage",
    "require_matplotlib",
]
