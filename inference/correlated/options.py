"""The options of correlated clients, and what they ask of a program."""

from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from fedbayes.contract.answer import shortened
from fedbayes.errors import ClientDataError, ModelError
from fedbayes.inference.options import HUGE, TINY, check_choices, check_ranges, check_whole
from fedbayes.problem.roster import Roster

MOST_FACTORS = 8  # of the default rank


class Layout(NamedTuple):
    """Which latent couples the clients, and the sizes that follow.

    Attributes
    ----------
    latent, shape
        Its name and shape.
    num_globals, size
        Numbers d of globals and m of the latent's components.
    num_clients, rank
        K, and the number R of factors.
    """

    latent: str
    shape: tuple[int, ...]
    num_globals: int
    size: int
    num_clients: int
    rank: int

    @property
    def joint(self) -> int:
        """Length of ``(phi, theta_k)``."""
        return self.num_globals + self.size


@dataclass(frozen=True, kw_only=True)
class Options:
    """See :class:`~fedbayes.inference.correlated.method.CorrelatedClients`."""

    latent: str | None = None
    rank: int | None = None
    solver: Literal["auto", "importance", "nested", "laplace"] = "auto"
    num_samples: int | None = None
    num_sweeps: int = 200
    tolerance: float = 0.02
    num_chains: int = 4
    thinning: int = 4

    def __post_init__(self) -> None:
        check_choices(self, {"solver": ("auto", "importance", "nested", "laplace")})
        if not (self.latent is None or isinstance(self.latent, str)):
            raise ValueError(f"`latent` is {self.latent!r}; write the name of a local latent.")
        check_whole(self, {"rank": 1, "num_sweeps": 20, "num_chains": 1, "thinning": 1}, ("rank",))
        if self.num_samples is not None and (
            type(self.num_samples) is not int or self.num_samples < 16 or self.num_samples & (self.num_samples - 1)
        ):
            raise ValueError(
                f"`num_samples` is {self.num_samples!r}; quasi-random draws need a power of two from 16 on, such as "
                "256."
            )
        check_ranges(self, {"tolerance": (TINY, HUGE, "a change in posterior sds above zero, such as 0.02")})

    def draws_for(self, size: int) -> int:
        """Draws per client and round for ``(phi, theta_k)`` of this length: well above the regressors."""
        if self.num_samples is None:
            return max(256, 1 << (8 * (size + 1) - 1).bit_length())
        if self.num_samples <= 2 * size + 2:
            raise ValueError(
                f"`num_samples` is {self.num_samples}, but {size} globals and coefficients together need more than "
                f"{2 * size + 2} draws to be regressed on. Write at least {1 << (4 * size + 7).bit_length()}, or leave "
                "it out."
            )
        return self.num_samples


def by_client(
    layout: Layout, roster: Roster, theta: np.ndarray
) -> tuple[dict[str, tuple[np.ndarray, list[str]]], dict[str, list]]:
    """The coefficients ``(chain, draw, K, m)`` as a variable with its dimensions, and the labels of these."""
    dims = [f"{layout.latent}_dim_{i}" for i in range(len(layout.shape))]
    labels = {dim: list(range(length)) for dim, length in zip(dims, layout.shape, strict=True)}
    values = theta.reshape(*theta.shape[:3], *layout.shape)
    return {f"{layout.latent}_by_client": (values, ["client_name", *dims])}, {
        "other_client_name": list(roster.names),
        **labels,
    }


def layout_of(config: Options, roster: Roster) -> Layout:
    """The coupled latent and the sizes, checked.

    Raises
    ------
    ModelError
        No local latent couples the clients, or not in this way.
    ValueError
        The rank is too large, or there is one client.
    """
    if roster.num_clients < 2:
        raise ValueError(
            f"There is one client, {shortened(roster.names)}, and nobody to be correlated with. Give at least two, or "
            "fit it alone, by NumPyro's NUTS or `method='ep'`."
        )
    latent = _latent(config, roster)
    shape = _same_shape(latent, roster)
    size = prod(shape)
    return Layout(latent, shape, roster.size, size, roster.num_clients, _rank(config, size, roster.num_clients))


def _latent(config: Options, roster: Roster) -> str:
    """The coupled latent's name."""
    first = roster.locals[0] if roster.locals else None
    names = first.block.names if first else ()
    if not names:
        raise ModelError(
            "The program has no continuous local latent, and correlated clients need one: each client's own "
            "coefficients. Sample them in a `with fedbayes.local():` block, or name them by `local=(...)`."
        )
    if config.latent is None and len(names) > 1:
        vectors = [name for name, shape in first.block.shapes if prod(shape) > 1]  # type: ignore[union-attr]
        if len(vectors) != 1:
            raise ModelError(
                f"The program has several local latents, {sorted(names)}. Say which of them couples the clients, such "
                f"as `CorrelatedClients(latent={(vectors or list(names))[0]!r})`; the others are integrated out at the "
                "client."
            )
        return vectors[0]
    if config.latent is not None and config.latent not in names:
        raise ModelError(
            f"`latent` is {config.latent!r}, which is no continuous local latent of the program; these are "
            f"{sorted(names)}. Discrete and global latents can't couple the clients."
        )
    return config.latent or names[0]


def _same_shape(latent: str, roster: Roster) -> tuple[int, ...]:
    """The latent's shape, the same on all clients, with real components whose prior is their own."""
    shapes = [dict(known.block.shapes).get(latent) for known in roster.locals]
    for name, shape in zip(roster.names, shapes, strict=True):
        if shape != shapes[0]:
            seen = f"has shape {shape}" if shape is not None else "does not exist"
            raise ClientDataError(
                f"The latent '{latent}' of client '{name}' {seen}, but that of client '{roster.names[0]}' has "
                f"{shapes[0]}: correlated clients have coefficients of one shape, which mean the same on each. Give "
                "all clients the same columns."
            )
    known, shape = roster.locals[0], shapes[0]
    if latent not in known.real:
        raise ModelError(
            f"The latent '{latent}' is constrained, and a Gaussian couples the clients' real numbers. Sample it in "
            f"unconstrained space, such as its logarithm by `dist.Normal`, and transform it by "
            "`numpyro.deterministic`."
        )
    if shape is None or prod(shape) < 2:
        raise ModelError(
            f"The latent '{latent}' is a single number, and a covariance between clients is learned from several: "
            "its components are the replications. Couple a vector of coefficients, or fit a hierarchical model, "
            "`theta ~ Normal(mu, tau)` with global `mu` and `tau`, by `method='ep'`."
        )
    if latent in known.related:
        raise ModelError(
            f"The prior of '{latent}' depends on other latents, and the method replaces that prior by its own, so that "
            f"the dependence would be lost. Write a common mean outside of it: `z` with a prior of its own instead of "
            f"'{latent}', and `{latent} = mu + z` in the likelihood; leave its scale to the method."
        )
    return shape


def _rank(config: Options, size: int, num_clients: int) -> int:
    """The number of factors: below both numbers, as a factor analysis of m rows can't hold more."""
    most = min(size, num_clients)
    if config.rank is None:
        return max(1, min(size - 1, num_clients - 1, MOST_FACTORS))
    if config.rank > most:
        raise ValueError(
            f"`rank` is {config.rank}, but {num_clients} clients with {size} coefficients each have at most {most} "
            f"factors. Write {most} or less, or leave it out."
        )
    return config.rank
