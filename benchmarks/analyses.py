"""Analyses as an analyst would write them: is what a fit with defaults says right, and if not, does it say so?

    python benchmarks/analyses.py                          # what has no stored result yet; about an hour for all
    python benchmarks/analyses.py --only weibull --only spline          # these anew
    python benchmarks/analyses.py --again                               # all fits anew, against the stored NUTS
    python benchmarks/analyses.py --only spline --reference             # NUTS anew as well
    python benchmarks/analyses.py --table                               # ANALYSES.md from what is stored

Each fit and each NUTS runs in a fresh process with a time limit; results go to ``analyses.json`` after each.
"""

from pathlib import Path

import typer
from analyses_programs import ANALYSES
from examples.command import command
from examples.comparison import Comparison

_OPENING = """\
# Analyses as an analyst would write them

Written by `analyses.py`: usual models of applied statistics, each a program for one client (`analyses_programs/`) with
simulated data of 3 to 6 clients, fitted by `fedbayes.fit_federated` with its defaults, and compared with NumPyro's NUTS
on everybody's data.

{number} analyses. {summary}.
"""

COMPARISON = Comparison(Path(__file__), ANALYSES, 240.0, _OPENING, ("analysis", "what"))

if __name__ == "__main__":
    typer.run(command(COMPARISON))
