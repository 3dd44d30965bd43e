"""Locals in groups that can't be found, a group with no rows, and a scale that is zero at the mode: still exact."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import fedbayes as fb

WARDS, SURGEONS = 4, 3  # first axes of different lengths: as one group the locals are right, too, and take longer


def model(ward, surgeon, y):
    scale, level = numpyro.sample("scale", dist.HalfNormal(1.0)), numpyro.sample("level", dist.Normal(0.0, 1.0))
    with fb.local():
        of_ward = numpyro.sample("of_ward", dist.Normal(0.0, 1.0).expand([WARDS]).to_event(1))
        of_surgeon = numpyro.sample("of_surgeon", dist.Normal(0.0, 1.0).expand([SURGEONS]).to_event(1))
    mean = level + scale * (of_ward[ward] + of_surgeon[surgeon])
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def clients() -> dict:
    """All groups of all clients alike, but for the third ward, which has no rows."""
    y = norm.ppf((np.arange(18) + 0.5) / 18)
    found = {}
    for k in range(3):
        ward, surgeon = np.repeat([0, 1, 3], 6), np.tile([0, 1, 2], 6)
        # each ward and surgeon has values from all of the range
        order = np.argsort(np.argsort(np.tile(np.arange(6), 3) * 3 + (ward + surgeon + k) % 3))
        found[f"site{k}"] = {"ward": ward, "surgeon": surgeon, "y": y[order]}
    return found


def exact(data: dict) -> dict[str, tuple[float, float]]:
    """Means and sds of the level and the log of the scale, by a grid: all locals are integrated out in closed form."""
    level, log_scale = np.linspace(-1.5, 1.5, 121), np.linspace(-9.0, 1.0, 201)
    log_joint = norm.logpdf(level) + (norm.logpdf(np.exp(log_scale)) + log_scale)[:, None]
    for each in data.values():
        wards, surgeons = np.eye(WARDS)[each["ward"]], np.eye(SURGEONS)[each["surgeon"]]
        between = wards @ wards.T + surgeons @ surgeons.T
        for row, scale in enumerate(np.exp(log_scale)):
            law = multivariate_normal(cov=np.eye(len(each["y"])) + scale**2 * between)
            log_joint[row] += law.logpdf(each["y"] - level[:, None])
    weights = np.exp(log_joint - log_joint.max())
    weights /= weights.sum()
    found = {}
    for name, at, sums in (("level", level, weights.sum(0)), ("log_scale", log_scale, weights.sum(1))):
        mean = at @ sums
        found[name] = float(mean), float(np.sqrt((at - mean) ** 2 @ sums))
    return found


def test_groups_that_cannot_be_found_one_without_rows_and_a_scale_of_zero_at_the_mode() -> None:
    data = clients()
    fit = fb.fit_federated(model, data, key=jax.random.key(0), num_draws=500, correct=True, progress=False)
    assert {each.group_size for each in fit.fitted.roster.locals} == {WARDS + SURGEONS}
    assert fit.correction.reliable
    posterior = fit.idata.posterior
    drawn = {"level": posterior["level"].values, "log_scale": np.log(posterior["scale"].values)}
    for name, (mean, sd) in exact(data).items():
        assert np.mean(drawn[name]) == pytest.approx(mean, abs=0.12 * sd)
        assert np.std(drawn[name]) == pytest.approx(sd, rel=0.12)
    modes = fit.client_posterior("site0").posterior["of_ward"].values.reshape(-1, WARDS)
    assert np.mean(modes[:, 2]) == pytest.approx(0.0, abs=0.1)  # its prior
    assert np.std(modes[:, 2]) == pytest.approx(1.0, rel=0.1)
