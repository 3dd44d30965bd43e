"""Times that are simulated for `cox`: the partial likelihood is the probability of their order."""

import numpy as np
import pytest


@pytest.mark.statistical(key=0, numbers=4, errors=5.0)
def test_who_has_which_event_is_drawn_by_the_hazards(load):
    """Of two rows with hazards 1 and 3; where the second leaves at an event it is one of the first."""
    times, rng, hazards = load("families_data")._times, np.random.default_rng(0), np.array([1.0, 3.0])
    found = [times(hazards, rng) for _ in range(4000)]
    last, observed = np.array([each.max() for each, _ in found]), np.array([seen for _, seen in found])
    alone = observed.sum(axis=1) == 1
    assert alone.mean() == pytest.approx(0.5, abs=5.0 * 0.5 / np.sqrt(4000))
    first = np.array([np.argmin(each - seen) for each, seen in found])
    assert (first == 1).mean() == pytest.approx(0.75, abs=5.0 * np.sqrt(0.1875 / 4000))
    assert last[alone].mean() == pytest.approx(0.25, abs=5.0 * 0.25 / np.sqrt(alone.sum()))
    both = 0.25 + 0.75 * 1.0 + 0.25 / 3.0  # the first event, and then the wait for whoever is left
    assert last[~alone].mean() == pytest.approx(both, abs=5.0 * 1.0 / np.sqrt((~alone).sum()))


@pytest.mark.statistical(key=1, numbers=2, errors=5.0)
def test_the_score_at_the_truth_has_the_mean_zero(load):
    """Of the logarithm of the hazards' ratio, and its square has the mean of the information."""
    times, rng = load("families_data")._times, np.random.default_rng(1)
    x, beta, num = np.linspace(-1.0, 1.5, 8), 0.8, 2000
    scores, information = np.zeros(num), np.zeros(num)
    for place in range(num):
        time, seen = times(np.exp(beta * x), rng)
        for row in np.flatnonzero(seen):
            at_risk = time >= time[row]  # also who leaves at this event
            share = at_risk * np.exp(beta * x)
            share /= share.sum()
            scores[place] += x[row] - share @ x
            information[place] += share @ x**2 - (share @ x) ** 2
    assert scores.mean() == pytest.approx(0.0, abs=5.0 * scores.std() / np.sqrt(num))
    apart = scores**2 - information
    assert apart.mean() == pytest.approx(0.0, abs=5.0 * apart.std() / np.sqrt(num))
