"""Pictures of a fit under their public name; each stands beside what it shows."""

from fedbayes.formula.reading.plots import plot_estimates, plot_survival
from fedbayes.formula.reading.priors import plot_priors
from fedbayes.inference.correlated.plots import plot_client_correlation, plot_shrinkage
from fedbayes.inference.ep.plots import plot_influence
from fedbayes.inference.merging.plots import plot_merge
from fedbayes.pictures.comparison import plot_comparison
from fedbayes.pictures.conflict import plot_conflict
from fedbayes.pictures.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, require_matplotlib
from fedbayes.pictures.fairness import plot_fairness
from fedbayes.pictures.rounds import plot_rounds
from fedbayes.pictures.selection import plot_selection

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "plot_client_correlation",
    "plot_comparison",
    "plot_conflict",
    "plot_estimates",
    "plot_fairness",
    "plot_influence",
    "plot_merge",
    "plot_priors",
    "plot_rounds",
    "plot_selection",
    "plot_shrinkage",
    "plot_survival",
    "require_matplotlib",
]
