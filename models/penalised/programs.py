"""One client's program for each penalty; see the package for what they have in common."""

from typing import Literal

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from fedbayes.errors import ModelError
from fedbayes.models.penalised.mixtures import elastic_net_variance, horseshoe_variance, laplace_variance
from fedbayes.models.penalised.regression import NormalRegression
from fedbayes.problem.program.split import local

Error = Literal["shared", "own"]


def ridge(
    x: ArrayLike,
    y: ArrayLike | None = None,
    error: Error = "shared",
    mean_sd: float | None = None,
    intercept_sd: float | None = None,
) -> None:
    """Ridge: ``theta_j ~ N(mu_j, sigma2 / lam)``, ``y ~ N(X theta, sigma2)``.

    ``sigma2 / lam`` is a VARIANCE (van Erp, Oberski and Mulder 2019); Yue (2023) prints ``N(0, sigma / lambda)``, which
    is a misprint. Globals: ``lam ~ LogNormal(0, 1)``, and ``sigma2 ~ LogNormal(0, 1)`` where the error is shared. Both
    are exactly normal in unconstrained space. A client's factor is known in closed form, see `ridge_log_factor`. No
    formula says it: in ``(0 + a + b || site)`` each column's coefficients have an sd of their own, and here one penalty
    holds for all columns, in units of the error.

    Parameters
    ----------
    x
        Predictors, shape ``(n, d)``, best standardised: one penalty holds for all of them.
    y
        Outcomes, shape ``(n,)``; the priors suit outcomes of variance about one. None predicts.
    error
        ``"shared"``: all clients have the same error variance ``sigma2``, a global, as in the source. ``"own"``: each
        client has one of its own, a local latent with the same prior, and its penalty is in units of its own error.
    mean_sd
        The clients' coefficients scatter about a common mean, the global ``mu_j ~ N(0, mean_sd^2)``, and the penalty
        pulls them towards it; ``fit.select(population="mu")`` selects for the population. None: ``mu = 0``, as in the
        source.
    intercept_sd
        Prior standard deviation of the client's own ``intercept``, which is not penalised. None: no intercept, for
        centred data.

    Raises
    ------
    fedbayes.errors.ModelError
        ``error`` is neither of the two.
    """
    lam = numpyro.sample("lam", dist.LogNormal(0.0, 1.0))
    sigma2, mu = _error(error), _mean(x, mean_sd)
    _regression(x, y, jnp.sqrt(sigma2 / lam), sigma2, mu, intercept_sd)


def lasso(
    x: ArrayLike,
    y: ArrayLike | None = None,
    error: Error = "shared",
    mean_sd: float | None = None,
    intercept_sd: float | None = None,
) -> None:
    """Bayesian lasso: ``theta_j ~ Laplace(mu_j, sigma / lam)`` (Park and Casella 2008), ``y ~ N(X theta, sigma2)``.

    Globals: ``lam ~ LogNormal(0, 1)``, and ``sigma2 ~ LogNormal(0, 1)`` where the error is shared. The Laplace law is
    the scale mixture ``N(0, w sigma2 / lam^2)``, ``w ~ Exponential(1/2)``; the local ``u_j`` is standard normal and
    ``w`` a function of it. No formula says it: effects of a site are normal there, and here they have a Laplace law.

    Parameters
    ----------
    x, y, error, mean_sd, intercept_sd
        As for `ridge`.

    Raises
    ------
    fedbayes.errors.ModelError
        As for `ridge`.
    """
    lam = numpyro.sample("lam", dist.LogNormal(0.0, 1.0))
    sigma2, mu = _error(error), _mean(x, mean_sd)
    scale = jnp.sqrt(laplace_variance(_places(x)) * sigma2) / lam
    _regression(x, y, scale, sigma2, mu, intercept_sd)


def elastic_net(
    x: ArrayLike,
    y: ArrayLike | None = None,
    error: Error = "shared",
    mean_sd: float | None = None,
    intercept_sd: float | None = None,
) -> None:
    """Elastic net: ``p(theta_j) ~ exp(-lam1 |t| - lam2 t^2 / 2)``, ``t = (theta_j - mu_j) / sigma`` (Li and Lin 2010).

    Globals: ``lam1, lam2 ~ LogNormal(0, 1)``, and ``sigma2 ~ LogNormal(0, 1)`` where the error is shared. With ``lam2``
    near zero it is the lasso with ``lam = lam1``, with ``lam1`` near zero the ridge with ``lam = lam2``. The two are
    told apart only by the shape of the coefficients' law, of which few clients know little: their draws are noisy, and
    ``fb.EP(num_samples=1024)`` helps. No formula says it: effects of a site are normal there, and here their law has
    two penalties.

    Parameters
    ----------
    x, y, error, mean_sd, intercept_sd
        As for `ridge`.

    Raises
    ------
    fedbayes.errors.ModelError
        As for `ridge`.
    """
    l1 = numpyro.sample("lam1", dist.LogNormal(0.0, 1.0))
    l2 = numpyro.sample("lam2", dist.LogNormal(0.0, 1.0))
    sigma2, mu = _error(error), _mean(x, mean_sd)
    scale = jnp.sqrt(elastic_net_variance(_places(x), l1, l2) * sigma2)
    _regression(x, y, scale, sigma2, mu, intercept_sd)


def horseshoe(
    x: ArrayLike,
    y: ArrayLike | None = None,
    error: Error = "shared",
    mean_sd: float | None = None,
    intercept_sd: float | None = None,
    global_scale: float = 0.1,
    slab_scale: float = 2.0,
    slab_df: float = 4.0,
) -> None:
    """Regularised horseshoe: ``theta_j ~ N(mu_j, v_j)`` (Piironen and Vehtari 2017).

        1 / v_j = 1 / (tau lambda_j sigma)^2 + 1 / c2,      lambda_j ~ HalfCauchy(1),
        tau ~ HalfCauchy(global_scale),                     c2 ~ InverseGamma(slab_df / 2, slab_df slab_scale^2 / 2).

    Globals: ``tau``, ``c2``, and ``sigma2 ~ LogNormal(0, 1)`` where the error is shared. The local ``u_j`` is standard
    normal and ``lambda_j`` a function of it. A coefficient may be shrunk or not, which makes a client's posterior of
    the ``u_j`` far from Gaussian: the last rounds of EP then run NUTS at the client and take longer. No formula says
    it: all sites' effects on a column share an sd there, and here each coefficient has a scale of its own.

    Parameters
    ----------
    x, y, error, mean_sd, intercept_sd
        As for `ridge`.
    global_scale
        Of ``tau``: ``p0 / (d - p0) / sqrt(n)``, where ``p0`` of the ``d`` coefficients are guessed to be relevant and
        ``n`` is a client's typical number of rows. The same for all clients: it is a prior of a global.
    slab_scale, slab_df
        Scale and degrees of freedom of the Student law that large coefficients keep, in units of ``y`` for
        standardised predictors.

    Raises
    ------
    fedbayes.errors.ModelError
        As for `ridge`.
    """
    tau = numpyro.sample("tau", dist.HalfCauchy(global_scale))
    slab = numpyro.sample("c2", dist.InverseGamma(0.5 * slab_df, 0.5 * slab_df * slab_scale**2))
    sigma2, mu = _error(error), _mean(x, mean_sd)
    scale = jnp.sqrt(horseshoe_variance(_places(x), tau * jnp.sqrt(sigma2), slab))
    _regression(x, y, scale, sigma2, mu, intercept_sd)


def _error(error: Error) -> Array:
    """The variance of the errors, everybody's or the client's own."""
    if error == "shared":
        return numpyro.sample("sigma2", dist.LogNormal(0.0, 1.0))
    if error == "own":
        with local():
            return numpyro.sample("sigma2", dist.LogNormal(0.0, 1.0))
    raise ModelError(
        f"`error` is {error!r}; it is 'shared', one error variance for all clients, or 'own', one for each."
    )


def _mean(x: ArrayLike, mean_sd: float | None) -> ArrayLike:
    """The population's mean coefficients, shape ``(d,)``."""
    if mean_sd is None:
        return 0.0
    return numpyro.sample("mu", dist.Normal(0.0, mean_sd).expand([jnp.shape(x)[-1]]).to_event(1))


def _places(x: ArrayLike) -> Array:
    """Where each coefficient stands in the mixing law, shape ``(d,)``."""
    with local():
        return numpyro.sample("u", dist.Normal(0.0, 1.0).expand([jnp.shape(x)[-1]]).to_event(1))


def _regression(
    x: ArrayLike, y: ArrayLike | None, scale: Array, sigma2: Array, mu: ArrayLike, intercept_sd: float | None
) -> None:
    x = jnp.asarray(x)
    scale, mu = jnp.broadcast_to(scale, x.shape[1:]), jnp.broadcast_to(mu, x.shape[1:])
    if intercept_sd is not None:
        x = jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], axis=1)
        scale, mu = jnp.append(scale, intercept_sd), jnp.append(mu, 0.0)
    numpyro.sample("y", NormalRegression(x, scale, jnp.sqrt(sigma2), mu, intercept=intercept_sd is not None), obs=y)
