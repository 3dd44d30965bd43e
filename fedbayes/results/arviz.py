"""Draws to ArviZ, in both of its generations: ``InferenceData`` (0.x) and ``DataTree`` (1.x)."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.errors import ResultCode
from fedbayes.problem.checks import perturbed
from fedbayes.problem.clients import ClientArrays
from fedbayes.problem.problem import Problem
from fedbayes.problem.program import Program
from fedbayes.problem.split import trace_sites

if TYPE_CHECKING:
    import xarray as xr

Groups = Mapping[str, Mapping[str, np.ndarray]]


def to_arviz(groups: Groups, coords: Mapping[str, Any], dims: Mapping[str, list[str]], attrs: Mapping[str, Any]) -> Any:
    """An ArviZ object from named groups of arrays ``(chain, draw, ...)``, with ``attrs`` on each group."""
    import arviz as az

    groups = {name: {k: np.asarray(v) for k, v in group.items()} for name, group in groups.items() if group}
    names = {name for group in groups.values() for name in group}
    dims = {name: list(value) for name, value in dims.items() if name in names}
    coords = {
        name: np.asarray(value) for name, value in coords.items() if any(name in value for value in dims.values())
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="More chains")  # which is no mistake here
        if int(az.__version__.split(".")[0]) >= 1:
            result = az.from_dict(groups, coords=coords, dims=dims)
        else:  # ArviZ 0.x takes groups as keywords, and sorts their variables where dm-tree is installed
            result = az.from_dict(**groups, coords=coords, dims=dims)  # type: ignore[arg-type]
            for name, group in groups.items():
                setattr(result, name, result[name][list(group)])
    for name in groups:
        result[name].attrs.update(attrs)
    return result


def site_dims(program: Program, client: ClientArrays, user_dims: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Dimension names of each site: its plates', then the user's, then ArviZ's defaults."""
    dims = {}
    for name, site in trace_sites(program.model, client.static, client.arrays).items():
        labels = [f"{name}_dim_{axis}" for axis in range(len(site.shape))]
        for plate, axis in site.plates if site.kind != "plate" else ():
            labels[axis] = plate
        given = list(user_dims.get(name, ()))
        if len(given) > len(labels):
            raise ValueError(
                f"`dims` names {len(given)} dimensions of '{name}', {given}, but the site has shape {site.shape}."
            )
        dims[name] = [*labels[: len(labels) - len(given)], *given]
    return dims


def plate_coords(dims: Mapping[str, Sequence[str]], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Integer coordinates for the dimensions that the user gave none."""
    coords = {}
    for name, labels in dims.items():
        if name in values:
            for label, length in zip(labels, values[name].shape[2:], strict=True):
                coords[label] = np.arange(length)
    return coords


def global_sites(problem: Problem) -> list[str]:
    """Sites that are functions of the globals alone: neither locals nor data move them."""
    rng = np.random.default_rng(4)
    theta = rng.normal(size=problem.globals.size) * 0.3
    seen: dict[str, np.ndarray] | None = None
    for bucket in problem.buckets:
        program = bucket.clients.program
        client = problem.arrays[int(bucket.members[0])].arrays
        other = perturbed(client)
        values = jax.jit(program.values)
        for data in (client, other):
            z = rng.normal(size=program.locals.size) * 0.3
            found = {name: np.asarray(value) for name, value in values(theta, z, data).items()}
            seen = (
                found
                if seen is None
                else {name: value for name, value in seen.items() if _same(value, found.get(name))}
            )
    local = {*problem.buckets[0].clients.program.locals.names}
    return [name for name in seen or () if name not in local]


def _same(value: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and np.array_equal(value, other, equal_nan=True)


def constrained(program: Program, client: ClientArrays, draws: Array) -> dict[str, np.ndarray]:
    """Latents and deterministic sites at joint unconstrained draws ``(chain, draw, d + m)``."""
    data = {name: jnp.asarray(array) for name, array in client.arrays.items()}
    size = program.globals.size

    def values(position: Array) -> dict[str, Array]:
        return program.values(position[:size], position[size:], data)

    batched = jax.jit(lambda flat: jax.lax.map(values, flat, batch_size=256))
    flat = batched(draws.reshape(-1, draws.shape[-1]))
    return {name: np.asarray(value).reshape(*draws.shape[:2], *value.shape[1:]) for name, value in flat.items()}


def chain_diagnostics(theta: np.ndarray) -> "xr.Dataset":
    """ArviZ's R-hat and bulk effective sample size of chains ``(chain, draw, d)``: variables ``r_hat`` and ``ess``."""
    import arviz as az
    import xarray as xr

    if len(theta) == 1:  # R-hat compares chains
        unknown = np.full(theta.shape[2], np.nan)
        return xr.Dataset({"r_hat": ("coordinate", unknown), "ess": ("coordinate", unknown)})
    chains = to_arviz({"posterior": {"theta": theta}}, {}, {}, {})

    def found(result: Any) -> "xr.DataArray":
        return (result["posterior"] if "posterior" in result else result)["theta"]

    # ArviZ allows more than the draws there are, for antithetic chains; of many short ones that is noise
    ess = np.minimum(found(az.ess(chains)), theta.shape[0] * theta.shape[1])
    return xr.Dataset({"r_hat": found(az.rhat(chains)), "ess": ess})


# dimensions after `round`, and the order in which the records have them
_CLIENT, _REPLICATE, _COORDINATE = "client", "replicate", "coordinate"
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "kl": (_REPLICATE,),
    "change": (_REPLICATE,),
    "monte_carlo_noise": (_REPLICATE,),
    "step": (_REPLICATE,),
    "code": (_CLIENT, _REPLICATE),
    "k_hat": (_CLIENT, _REPLICATE),
    "effective_draws": (_CLIENT, _REPLICATE),
    "influence": (_CLIENT, _REPLICATE),
    "smallest_cavity_eigenvalue": (_REPLICATE, _CLIENT),
    "gradient_norm": (_CLIENT, _REPLICATE),
    "drift": (_CLIENT, _REPLICATE),
    "participation": (_CLIENT, _REPLICATE),
    "position": (_REPLICATE, _COORDINATE),
    "slope": (_REPLICATE, _COORDINATE),
    "slope_position": (_REPLICATE, _COORDINATE),
    "server": (_REPLICATE, _COORDINATE),
    "client_mean": (_REPLICATE, _CLIENT, _COORDINATE),
    "client_sd": (_REPLICATE, _CLIENT, _COORDINATE),
    "shift": (_REPLICATE, _CLIENT, _COORDINATE),
    "overlap": (_REPLICATE, _CLIENT, _COORDINATE),
    "distance": (_REPLICATE, _CLIENT),
    "effective_clients": (_REPLICATE, _COORDINATE),
    "misfit": (_REPLICATE, _CLIENT),
    "gap": (_REPLICATE,),
    "merge_error": (_REPLICATE,),
    "merge_k_hat": (_REPLICATE,),
}
_EVERY_FIT = ("code", "change")


def rounds_dataset(history: Sequence[Mapping[str, np.ndarray]], names: Sequence[str], size: int) -> "xr.Dataset":
    """Diagnostics of each round or block of rounds: dimensions round, client, replicate and coordinate.

    The coordinate ``round`` counts the rounds done by then.
    """
    import xarray as xr

    found = {name for record in history for name in record} | {*_EVERY_FIT}
    replicates = max((record["code"].shape[-1] for record in history if record["code"].ndim > 1), default=1)
    sizes = {_CLIENT: len(names), _REPLICATE: replicates, _COORDINATE: size}

    def gather(name: str, dims: tuple[str, ...]) -> np.ndarray:
        shape = tuple(sizes[dim] for dim in dims)
        full = [
            np.full(shape, np.nan) if name not in r else np.broadcast_to(_fitted(r[name], shape), shape)
            for r in history
        ]
        return np.stack(full)

    variables: dict[str, Any] = {
        name: (("round", *dims), gather(name, dims)) for name, dims in _VARIABLES.items() if name in found
    }
    dims, codes = variables["code"]
    variables["code"] = (dims, np.nan_to_num(codes, nan=ResultCode.INACTIVE).astype(int))
    variables["active"] = (("round", _CLIENT), np.stack([record["active"] for record in history]))
    nobody = np.full(len(names), "")
    variables["solver"] = (("round", _CLIENT), np.stack([record.get("solver", nobody) for record in history]))
    variables["phase"] = (("round",), np.asarray([str(record["phase"]) for record in history]))
    variables["seconds"] = (("round",), np.asarray([float(record["seconds"]) for record in history]))
    rounds = np.asarray([int(record.get("rounds", 1)) for record in history])
    variables["rounds"] = (("round",), rounds)
    coords: dict[str, Any] = {"round": np.cumsum(rounds), _CLIENT: list(names)}
    if any(_COORDINATE in dims for dims, _ in variables.values()):
        coords[_COORDINATE] = np.arange(size)
    dataset = xr.Dataset(variables, coords=coords).transpose("round", _CLIENT, _REPLICATE, ...)
    for name in dataset.data_vars:
        if text := _MEANINGS.get(str(name)):
            dataset[name].attrs["long_name"] = text
    dataset["code"].attrs["meanings"] = "; ".join(f"{int(code)}: {code.meaning}" for code in ResultCode)
    return dataset


def _fitted(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A record's array with as many axes as wanted: nobody active leaves codes without replicates."""
    return value.reshape(value.shape + (1,) * (len(shape) - value.ndim))


_MEANINGS = {
    "kl": "KL divergence of the new global from the old one, nats",
    "change": "undamped change of the global, posterior sds (root mean square)",
    "monte_carlo_noise": "expected Monte Carlo error of the global, posterior sds (root mean square)",
    "step": "step taken towards the clients' new sites",
    "code": "result code",
    "k_hat": "Pareto tail shape of the importance weights",
    "effective_draws": "effective number of draws",
    "influence": "how far the client moves the others' mean, in their sds (root mean square)",
    "smallest_cavity_eigenvalue": "smallest eigenvalue of the cavity's precision in units of the global's",
    "gradient_norm": "norm of the gradient of the client's energy where its steps begin, shared coordinates",
    "drift": "how far the client's steps of one round lead, shared coordinates (root mean square)",
    "participation": "fraction of the rounds in which the client was drawn",
    "position": "position at the synchronisations, shared coordinates",
    "slope": "gradient of the joint energy at the synchronisations, shared coordinates; zero in mean without bias",
    "slope_position": "position times that gradient over the temperature; its mean less the product of the two means "
    "is one without bias (Stein's identity)",
    "server": "where the server is after the round, unconstrained space",
    "client_mean": "mean of the client's own posterior, unconstrained space",
    "client_sd": "sd of the client's own posterior, unconstrained space",
    "shift": "mean of the client's own posterior less that of all the others' together, sds of the merged posterior",
    "overlap": "Bhattacharyya coefficient of the client's own posterior and all the others' together, per coordinate",
    "distance": "of the merged mean from the client's own, in the client's own sds (root mean square); about 1 where "
    "clients agree",
    "effective_clients": "effective number of clients that decide the merged mean, per coordinate",
    "misfit": "sd of the client's log density about its Gaussian over the merged posterior, nats; 0 if it is Gaussian",
    "gap": "between where the rounds ended and the merged mean, posterior sds (root mean square)",
    "merge_error": "of the merged mean, measured by importance weights, posterior sds (root mean square)",
    "merge_k_hat": "Pareto tail shape of the merged Gaussian's importance weights",
    "rounds": "communication rounds that the record stands for",
    "seconds": "wall time",
}
