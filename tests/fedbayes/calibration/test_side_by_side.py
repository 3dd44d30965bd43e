"""Data sets fitted side by side have the answers, rounds and verdicts that `fit_federated` gives to each alone."""

import warnings
from functools import partial

import jax
import numpy as np
import pytest

import fedbayes as fb
from fedbayes.calibration.fits import AtOnce, Options
from fedbayes.calibration.rounds import why_not_at_once
from fedbayes.fit import problem_for
from fedbayes.models import eight_schools, heart_disease
from fedbayes.runtime.precision import computing

NUM = 5
hospitals = partial(heart_disease.simulate, rows=(15, 25, 40), intercept=0.3, beta=np.array([1.0, -0.5]))
CASES = {
    "sites by Laplace": (heart_disease.model, hospitals, fb.EP(solver="laplace", num_replicates=1)),
    "Laplace": (heart_disease.model, hospitals, fb.Laplace()),
    "merged by Laplace": (heart_disease.model, hospitals, fb.OneShot(combine="laplace", num_replicates=1)),
    "averaged": (heart_disease.model, hospitals, fb.FedPA(solver="laplace", num_replicates=1, check=False)),
    "with locals": (
        eight_schools.model_noncentered,
        partial(eight_schools.simulate, sigma=(10.0, 15.0, 12.0, 9.0), mu=3.0, tau=8.0),
        fb.Laplace(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_data_set_has_the_fit_it_has_alone(case):
    model, simulate, method = CASES[case]
    data_sets = [simulate(jax.random.key(number))[0] for number in range(NUM)]
    with computing():
        problem = problem_for(method, model, data_sets[0], (), np.float64)
        at_once = AtOnce(problem, Options(method, 100, False, None, (), np.float64), NUM + 1)
        run, answer, _ = at_once.fitted(range(NUM), data_sets, jax.random.key(1))
    for number, clients in enumerate(data_sets):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fb.NotConvergedWarning)
            alone = fb.fit_federated(
                model, clients, method=method, key=jax.random.key(2), progress=False, correct=False
            )
        for leaf in ("shift", "precision"):
            expected = getattr(alone.posterior, leaf)[0]
            found = getattr(answer.posterior, leaf)[number]
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())
        assert run.rounds[number] == alone.rounds.sizes["round"]
        assert bool(run.converged[number]) == alone.fitted.run.converged
    assert len(set(run.rounds)) > 1 or case in ("merged by Laplace", "averaged")  # some wait for others


def test_what_can_not_be_fitted_side_by_side_says_why():
    class Coupled:
        needs_rows, only_locals = False, True

    class Batches:
        needs_rows, only_locals = True, False

    class Phase:
        recording, check = None, None

    class Planned:
        recording, check = None, print

    assert why_not_at_once(Batches(), [Phase()]) == "it draws mini-batches"
    assert "couples" in why_not_at_once(Coupled(), [Phase()])
    assert "looks at the data set" in why_not_at_once(Batches(), [Planned()])
    assert why_not_at_once(fb.Laplace(), [Phase()]) is None
