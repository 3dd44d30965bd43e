"""A picture of a regression's priors, before its data are used."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import FormulaError
from fedbayes.formula.regression import Regression
from fedbayes.pictures.drawing import BLUE, LINE, literal, plain, require_matplotlib, wrapped
from fedbayes.results.arviz import labels
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 4
_NAME = 2.4  # inches of a panel that its name may take
_MOST = 60  # panels of a picture
_DRAWS, _POINTS, _BINS = 20_000, 200, 40
_SHOWN = (0.01, 0.99)  # the quantiles from which to which a density is drawn


class _Density(NamedTuple):
    """The prior density of one number, at some of its values."""

    name: str
    at: np.ndarray
    value: np.ndarray


def plot_priors(reg: Regression) -> "np.ndarray[Any, np.dtype[Any]]":
    """A panel for each parameter with the density of its prior, from the 1st to the 99th percentile.

    Entries of a parameter that have the same prior share a panel; others have one each. ``Intercept_centred`` is the
    intercept at everybody's mean covariates. Of correlations and of probabilities that sum to one, whose densities are
    not those of single numbers, histograms of draws are shown.

    Parameters
    ----------
    reg
        The regression, with or without clients; at most 60 panels.

    Returns
    -------
    numpy.ndarray
        Matplotlib's axes, shape ``(n,)``, in a new figure.

    Raises
    ------
    FormulaError
        It is no regression.
    ValueError
        There are too many panels, or none.

    See Also
    --------
    fedbayes.regression : Has the default priors, and takes others.
    fedbayes.Regression : Has the priors as distributions, and draws outcomes by them.

    Examples
    --------
    >>> import fedbayes as fb
    >>> rows = {"a": {"x": [0.0, 1.0, 2.0, 4.0], "y": [1.0, 2.0, 2.0, 5.0]}}
    >>> axes = fb.plots.plot_priors(fb.regression("y ~ x", clients=rows))
    >>> [ax.get_title(loc="left") for ax in axes]
    ['Intercept_centred', 'x', 'sigma']
    """
    if not isinstance(reg, Regression):
        raise FormulaError(f"`reg` is a {type(reg).__name__}; write what `fb.regression` has returned.")
    names = zip(reg.described.priors, reg.priors.values(), strict=True)
    with computing():
        found = [each for name, prior in names for each in _densities(reg, name, prior)]
    if not 0 < len(found) <= _MOST:
        raise ValueError(f"The regression has {len(found)} priors to draw; a picture has 1 to {_MOST}. Print it.")
    return _drawn(found)


def _densities(reg: Regression, name: str, prior: dist.Distribution) -> Iterator[_Density]:
    """Of a parameter's entries, or of one for all where these have the same prior."""
    draws = np.asarray(prior.sample(jax.random.key(0), (_DRAWS,)), float)
    law = prior.base_dist if isinstance(prior, dist.Independent) else prior
    if isinstance(law, dist.LKJCholesky):
        name = name.replace("_cholesky", "_correlation")
        correlations = draws @ draws.swapaxes(-1, -2)
        draws = correlations[:, *np.tril_indices(draws.shape[-1], -1)]
    elif isinstance(law, dist.ExpandedDistribution) and not law.base_dist.shape():
        law, draws = law.base_dist, draws.ravel()
    shape = draws.shape[1:]
    low, high = np.quantile(draws, _SHOWN, axis=0)
    if law.event_shape:
        at, value = _histograms(draws.reshape(len(draws), -1), low.ravel(), high.ravel())
    else:
        at = np.linspace(low, high, _POINTS)
        value = np.exp(np.asarray(law.log_prob(jnp.asarray(at)), float))
    dims = reg.dims.get(name, [f"{name}_dim_{axis}" for axis in range(len(shape))])
    words = labels(name, shape, dims, reg.coords) if shape else [name]
    for entry, x, y in zip(words, at.reshape(len(at), -1).T, value.reshape(len(at), -1).T, strict=True):
        yield _Density(entry, x, y)


def _histograms(draws: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles and heights of the bins of each column, shape ``(bins, column)``."""
    edges = np.linspace(low, high, _BINS + 1)
    counts = [np.histogram(column, bins)[0] for column, bins in zip(draws.T, edges.T, strict=True)]
    return (edges[1:] + edges[:-1]) / 2.0, np.transpose(counts) / (len(draws) * (edges[1] - edges[0]))


def _drawn(found: list[_Density]) -> "np.ndarray[Any, np.dtype[Any]]":
    """A panel for each density in a new figure."""
    require_matplotlib()
    import matplotlib.pyplot as plt

    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    titles = [wrapped(each.name, _NAME, "medium", "normal") for each in found]
    height = 1.7 + LINE * max(title.count("\n") for title in titles)
    figure, axes = plt.subplots(
        rows, columns, figsize=(2.6 * columns + 0.6, height * rows + 0.5), layout="constrained", squeeze=False
    )
    for ax in axes.flat[len(found) :]:
        ax.set_visible(False)
    for ax, each, title in zip(axes.flat, found, titles, strict=False):
        _draw(ax, each)
        ax.set_title(literal(title), loc="left", fontsize="medium")
    figure.supylabel("prior density", fontsize="small")
    return axes.ravel()[: len(found)]


def _draw(ax: "Axes", found: _Density) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.fill_between(found.at, found.value, color=BLUE, alpha=0.18, linewidth=0.0)
    ax.plot(found.at, found.value, color=BLUE, linewidth=1.6)
    ax.set_ylim(0.0, None)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(3))
    plain(ax)
    ax.spines["left"].set_visible(False)
