"""Pictures of a fit under their public name; each stands beside what it shows."""

from fedbayes.inference.correlated.plots import plot_client_correlation, plot_shrinkage
from fedbayes.inference.ep.plots import plot_influence
from fedbayes.inference.merging.plots import plot_merge
from fedbayes.results.client_plots import plot_conflict, plot_fairness, plot_selection
from fedbayes.results.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, require_matplotlib
from fedbayes.results.plots import plot_comparison, plot_rounds

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "plot_client_correlation",
    "plot_comparison",
    "plot_conflict",
    "plot_fairness",
    "plot_influence",
    "plot_merge",
    "plot_rounds",
    "plot_selection",
    "plot_shrinkage",
    "require_matplotlib",
]
