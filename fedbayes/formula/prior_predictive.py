"""Draws of a regression's priors, and of all clients' outcomes given these, for ArviZ."""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from jax import Array

from fedbayes.problem.problem import make_problem
from fedbayes.questions.replicates import prior_draws, prior_replicates, row_labels, side_by_side
from fedbayes.results.arviz import to_arviz
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing


def prior_predictive(
    model: Callable[..., None],
    clients: Mapping[str, Mapping[str, Any]],
    coords: Mapping[str, list[str]],
    dims: Mapping[str, list[str]],
    key: Array,
    num_draws: int,
) -> Any:
    """The groups ``prior``, ``prior_predictive`` and ``observed_data``; all but the key is a regression's.

    Draws are those of ``fit.predictive_check(prior=True)`` with the fit's key.

    Raises
    ------
    ValueError
        ``num_draws`` is no number from 1.
    """
    if not isinstance(num_draws, int) or isinstance(num_draws, bool) or num_draws < 1:
        raise ValueError(f"`num_draws` is {num_draws!r}; write a number from 1.")
    with computing():
        problem = make_problem(model, clients)
        prior = problem.roster.prior
    key = key_for(key, Purpose.PRIOR)
    values = prior_draws(problem, prior, key, num_draws)
    found = list(prior_replicates(problem, values, key))
    seen, drawn = {each.name: each.seen for each in found}, {each.name: each.drawn for each in found}
    groups = {"prior": values, "prior_predictive": side_by_side(drawn, 2), "observed_data": side_by_side(seen, 0)}
    rows = {f"{site}_row": labels for site, labels in row_labels(seen).items()}
    told = {"inference_library": "fedbayes", "inference_library_version": version("fedbayes")}
    return to_arviz(
        groups, {**coords, **rows}, {**dims, **{site: [f"{site}_row"] for site in groups["observed_data"]}}, told
    )
