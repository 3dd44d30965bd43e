"""The priors of a program in words, and the program's text, where they can be had."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist

from fedbayes.report import priors
from fedbayes.report.facts import facts_of
from fedbayes.report.priors import in_words, priors_of, source_of


def test_priors_that_depend_on_other_latents_and_vectors_are_said_to(stored_fits):
    priors = facts_of(stored_fits.read("scale").fitted).priors
    assert priors == {"mu": "Normal(loc=1, scale=2)", "sigma": "LogNormal(loc=0, scale=0.5)"}


def test_a_parameter_that_differs_from_run_to_run_is_given_other_latents():
    one, other = (dist.Normal(0.0, scale).expand([3]).to_event(1) for scale in (0.3, 0.4))
    assert in_words(one, other) == "Normal(loc=0, scale=given other latents)"
    assert in_words(one, one) == "Normal(loc=0, scale=0.3)"
    assert in_words(*[dist.HalfNormal(np.array([1.0, 2.5]))] * 2) == "HalfNormal(scale=[1, 2.5])"
    assert in_words(*[dist.HalfNormal(np.arange(1.0, 8.0))] * 2) == "HalfNormal(scale=1 to 7, shape (7,))"


def test_a_program_that_can_not_be_run_on_made_up_data_has_no_priors(fit, monkeypatch):
    monkeypatch.setattr(priors, "_laws", lambda *_: [][0])
    assert priors_of(fit.problem) == {}


def test_a_program_without_text_has_none(fit):
    nameless = eval("lambda x: x")
    assert source_of(SimpleNamespace(programs=[SimpleNamespace(model=partial(nameless, x=1))])) == ""
    assert source_of(fit.problem).startswith("def ridge(")
