"""Outcomes on the whole line: normal, and t with unknown degrees of freedom."""

import numpyro.distributions as dist

from fedbayes.formula.families.family import Family, Outcome, Parameter, half_student, identity_scale


def _any(outcome: Outcome) -> None:
    """Every number is inside; that all are finite has been looked at."""


SIGMA = Parameter("sigma", lambda summary: half_student(summary.sd))

GAUSSIAN = Family("gaussian", "identity", lambda summary: "dist.Normal(eta, sigma)", _any, identity_scale, (SIGMA,))
STUDENT = Family(
    "student",
    "identity",
    lambda summary: "dist.StudentT(nu, eta, sigma)",
    _any,
    identity_scale,
    (SIGMA, Parameter("nu", lambda summary: dist.Gamma(2.0, 0.1))),
)
