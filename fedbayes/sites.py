"""Marking the latents that belong to one client alone."""

from numpyro.handlers import infer_config

LOCAL = "fedbayes_local"


def local() -> infer_config:
    """Mark the latents sampled inside the ``with`` block as local to one client.

    A local latent is integrated out on its own client: it never enters a message, and it is returned only by
    ``fit.client_posterior(name)``.

    Examples
    --------
    >>> import fedbayes as fb, numpyro, numpyro.distributions as dist
    >>> def model(y=None):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     with fb.local():
    ...         theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    ...     numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)
    """
    return infer_config(config_fn=lambda site: {LOCAL: True})
