"""Outcomes on the whole line: normal, and t with unknown degrees of freedom."""

from typing import Any

import numpyro.distributions as dist

from fedbayes.formula.families.family import Family, Outcome, Parameter, Reading, Residual, half_student, identity_scale


def _any(outcome: Outcome) -> None:
    """Every number is inside; that all are finite has been looked at."""


def _location(law: Any) -> Any:
    return law.loc


SIGMA = Parameter("sigma", lambda summary: half_student(summary.sd))
_READING = Reading("difference", "mean", _location, _location, ratio=False)

GAUSSIAN = Family(
    "gaussian",
    "identity",
    lambda summary: "dist.Normal(eta, sigma)",
    _any,
    identity_scale,
    (SIGMA,),
    additions=("weights", "se"),
    reading=_READING._replace(residual=Residual(1.0, "sigma", 2.0)),
)
GAUSSIAN_WITH_ERRORS = Family(
    "gaussian",
    "identity",
    lambda summary: "dist.Normal(eta, errors)",
    _any,
    identity_scale,
    additions=("weights", "se"),
    needs=("se",),
    reading=_READING,
)
"""Outcomes with known standard errors, as in a meta-analysis; there is no ``sigma`` then."""
STUDENT = Family(
    "student",
    "identity",
    lambda summary: "dist.StudentT(nu, eta, sigma)",
    _any,
    identity_scale,
    (SIGMA, Parameter("nu", lambda summary: dist.Gamma(2.0, 0.1))),
    reading=_READING._replace(intercept="location", response="location"),
)
