"""The models of `benchmarks/analyses.py` split without loss, and verdicts follow the rule."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from numpyro.handlers import seed
from numpyro.infer.util import potential_energy

from fedbayes.errors import ModelError
from fedbayes.problem.problem import make_problem

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "analyses.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="these tests run away from a checkout")

NAMES = (
    *("weibull", "piecewise exponential", "interval censored", "log-logistic"),
    *("rasch", "2pl", "ordinal", "multinomial", "separation"),
    *("zero-inflated poisson", "hurdle", "negative binomial", "beta regression", "beta-binomial"),
    *("gamma regression", "dirichlet-multinomial"),
    *("emax", "ar(1) errors", "spline", "mixture", "horseshoe", "robust", "truncated"),
    *(
        "missing covariate",
        "missing put in place",
        "measurement error",
        "growth curves",
        "stepped wedge",
        "meta-analysis",
    ),
)
REFUSED = "missing by obs_mask"


@pytest.fixture(scope="module")
def script(load):
    return load("analyses")


@pytest.fixture(scope="module")
def verdicts(script):
    """The judge that this script shares with others; loading it puts the folder's modules at hand."""
    return sys.modules["examples.verdicts"]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def test_all_analyses_are_tried(script) -> None:
    assert set(script.ANALYSES) == {*NAMES, REFUSED}


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_splits_without_loss(script, name: str) -> None:
    example = script.ANALYSES[name]
    problem = make_problem(example.model, dict(list(example.clients().items())[:2]))
    name, arrays, size = problem.names[0], problem.arrays[0], problem.globals.size
    client, own = problem.client(name), problem.program(name)
    kept = problem.unpadded(name, np.arange(size + client.num_locals))
    padding = np.setdiff1d(np.arange(size + client.num_locals), kept)  # standard normal
    data = arrays.static | {key: jnp.asarray(value) for key, value in arrays.arrays.items()}

    def both(x):
        params = own.globals.unravel(x[:size]) | own.locals.unravel(x[kept][size:])
        joint = -potential_energy(seed(example.model, 0), (), data, params)
        return problem.prior.log_density(x[:size]) + client.log_factor(x), joint + jnp.sum(norm.logpdf(x[padding]))

    x = 0.3 * np.random.default_rng(5).normal(size=size + client.num_locals)
    np.testing.assert_allclose(*jax.jit(both)(x), rtol=1e-10)


def test_a_covariate_imputed_by_obs_mask_is_refused(script) -> None:
    example = script.ANALYSES[REFUSED]
    with pytest.raises(ModelError, match="`obs_mask` leaves out of the site 'x'"):
        make_problem(example.model, example.clients())


NUTS = {"labels": ["a", "b"], "mean": [0.0, 1.0], "sd": [1.0, 2.0], "mcse": [0.01, 0.01], "mcse_sd": [0.01, 0.01]}
NUTS |= {"r_hat": 1.0, "diverging": 0, "cpu": 10.0}
FIT = {
    "labels": ["a", "b"],
    "drawn_mean": [0.0, 1.0],
    "drawn_sd": [1.0, 2.0],
    "conclusion": "fit.idata can be used as it is",
}


@pytest.mark.parametrize(
    ("changed", "nuts", "verdict"),
    [
        ({}, {}, "right"),
        ({"drawn_mean": [0.0, 1.25]}, {}, "right"),
        ({"drawn_mean": [0.0, 1.27]}, {}, "SILENTLY WRONG"),
        ({"drawn_sd": [1.0, 1.7]}, {}, "SILENTLY WRONG"),
        ({"drawn_sd": [1.0, 1.7], "own_mcse_sd": [0.0, 0.02]}, {}, "within its error"),
        ({"drawn_sd": [1.0, 1.7], "long_tailed": ["b"]}, {}, "tail told"),
        ({"drawn_sd": [1.0, 1.7], "long_tailed": ["a"]}, {}, "SILENTLY WRONG"),
        ({"drawn_mean": [0.0, 1.27], "long_tailed": ["b"]}, {}, "SILENTLY WRONG"),
        ({"drawn_mean": [9.0, 1.0], "conclusion": "don't rely on fit.idata: its error is not known"}, {}, "flagged"),
        ({"drawn_mean": [9.0, 1.0]}, {"r_hat": 1.2}, "no reference"),
        ({"drawn_mean": [9.0, 1.0]}, {"diverging": 3}, "NUTS diverges"),
        ({}, {"diverging": 3}, "right"),
        ({"error": {"kind": "refused"}}, {}, "refused"),
    ],
)
def test_a_verdict_follows_the_rule(verdicts, changed, nuts, verdict: str) -> None:
    assert verdicts.verdict(FIT | changed, NUTS | nuts)["verdict"] == verdict


def test_without_a_reference_a_usable_fit_has_no_verdict(verdicts) -> None:
    assert verdicts.verdict(FIT, {"slow": 240.0})["verdict"] == "no reference"
