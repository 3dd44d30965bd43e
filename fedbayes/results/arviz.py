"""Draws to ArviZ, in both of its generations: ``InferenceData`` (0.x) and ``DataTree`` (1.x)."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedbayes.problem.checks import perturbed
from fedbayes.problem.problem import Problem
from fedbayes.problem.program.program import Arrays, Program, entry_labels
from fedbayes.problem.program.sites import trace_sites
from fedbayes.runtime.compiling import jit_quickly
from fedbayes.runtime.lru import Kept

Groups = Mapping[str, Mapping[str, np.ndarray]]

_LARGE = 1 << 24  # bytes of a client's arrays
CLIENTS = "client_name"  # the dimension of the clients


def shown(name: str) -> str:
    """What ArviZ calls a site: ``net.kernel`` for ``net/kernel``, as a slash is a path to ArviZ 1.x and in files."""
    return name.replace("/", ".")


def to_arviz(groups: Groups, coords: Mapping[str, Any], dims: Mapping[str, list[str]], attrs: Mapping[str, Any]) -> Any:
    """An ArviZ object from named groups of arrays ``(chain, draw, ...)``, with ``attrs`` on each group."""
    import arviz as az

    groups = {name: {shown(k): np.asarray(v) for k, v in group.items()} for name, group in groups.items() if group}
    names = {name for group in groups.values() for name in group}
    dims = {shown(name): [shown(dim) for dim in value] for name, value in dims.items() if shown(name) in names}
    coords = {shown(name): np.asarray(value) for name, value in coords.items()}
    coords = {name: value for name, value in coords.items() if any(name in labels for labels in dims.values())}
    with warnings.catch_warnings():
        # more chains than draws are no mistake here; ArviZ 0.x and 1.x have words of their own for it
        warnings.filterwarnings("ignore", message="More chains|Found chain dimension to be longer")
        if int(az.__version__.split(".")[0]) >= 1:
            result = az.from_dict(groups, coords=coords, dims=dims)
        else:  # ArviZ 0.x takes groups as keywords, and sorts their variables where dm-tree is installed
            result = az.from_dict(**groups, coords=coords, dims=dims)  # type: ignore[arg-type]
            for name, group in groups.items():
                setattr(result, name, result[name][list(group)])
    for name in groups:
        result[name].attrs.update(attrs)
    return result


def group_of_its_own(group: str, values: Mapping[str, np.ndarray], attrs: Mapping[str, Any] | None = None) -> Any:
    """An ArviZ object with one group of a name that ArviZ 0.x makes none of; arrays ``(chain, draw)``."""
    import arviz as az
    import xarray as xr

    data = xr.Dataset({shown(name): (("chain", "draw"), value) for name, value in values.items()})
    data = data.assign_coords({name: np.arange(length) for name, length in data.sizes.items()}).assign_attrs(
        attrs or {}
    )
    if int(az.__version__.split(".")[0]) >= 1:
        return xr.DataTree(children={group: xr.DataTree(data)})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{group}.*")
        return az.InferenceData(**{group: data})  # type: ignore[arg-type]  # its first keyword is an option


def from_netcdf(path: Path) -> Any:
    """An ArviZ object from a file, read whole: nothing holds the file open, and it may be written anew."""
    import arviz as az

    found = az.from_netcdf(str(path))
    whole = found.load()
    found.close()
    return whole


def extended(idata: Any, other: Any) -> Any:
    """A copy of an ArviZ object with the groups of another one, in the place of those of the same names."""
    whole = idata.copy()
    if hasattr(whole, "extend"):
        whole.extend(other, join="right")
    else:
        for name, node in other.children.items():
            whole[name] = node.copy()
    return whole


def site_dims(program: Program, data: Arrays, user_dims: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Dimension names of each site: its plates', then the user's, then ArviZ's defaults; ``data`` give shapes."""
    dims = {}
    for name, site in trace_sites(program.model, program.static, data).items():
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


def labels(name: str, shape: Sequence[int], dims: Sequence[str], coords: Mapping[str, Any]) -> list[str]:
    """One label per entry of a site, ``beta[0]`` style, or ``beta[age]`` where the user has named them."""
    return entry_labels(
        name, [np.asarray(coords.get(dim, range(size))).tolist() for dim, size in zip(dims, shape, strict=True)]
    )


def plate_coords(dims: Mapping[str, Sequence[str]], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Integer coordinates for the dimensions that the user gave none."""
    coords = {}
    for name, labels in dims.items():
        if name in values:
            for label, length in zip(labels, values[name].shape[2:], strict=True):
                coords[label] = np.arange(length)
    return coords


_BATCH, _NUMBERS = 1024, 1 << 22  # draws of one compiled call, and the numbers in them, at most
_VALUES: Kept[Any] = Kept(64)


def constrained(program: Program, data: Arrays, draws: np.ndarray) -> dict[str, np.ndarray]:
    """Latents and deterministic sites at joint unconstrained draws ``(chain, draw, d + m)``."""
    flat, batch = draws.reshape(-1, draws.shape[-1]), _batch(program)
    parts = [_values(program, data, flat[begin : begin + batch]) for begin in range(0, len(flat), batch)]
    return {
        name: np.concatenate([part[name] for part in parts]).reshape(*draws.shape[:2], *parts[0][name].shape[1:])
        for name in parts[0]
    }


def _batch(program: Program) -> int:
    """Draws of one compiled call."""
    return max(1, min(_BATCH, _NUMBERS // max(program.globals.size + program.locals.size, 1)))


def _values(program: Program, data: Arrays, positions: np.ndarray) -> dict[str, np.ndarray]:
    """The sites at a batch of positions; always one shape, so that it compiles once."""
    size = program.globals.size

    def values(position: Array, data: Arrays) -> dict[str, Array]:
        return program.values(position[:size], position[size:], data)

    batched = _VALUES.get(program, lambda: jit_quickly(jax.vmap(values, (0, None))))
    full = np.resize(positions, (_batch(program), positions.shape[1]))
    return {name: np.asarray(value)[: len(positions)] for name, value in batched(full, dict(data)).items()}


class Shapes(NamedTuple):
    """A program, and the shapes of one client's arrays."""

    program: Program
    template: Mapping[str, jax.ShapeDtypeStruct]

    def ones(self) -> dict[str, np.ndarray]:
        """Arrays of these shapes."""
        return {name: np.ones(like.shape, like.dtype) for name, like in self.template.items()}

    @property
    def num_bytes(self) -> int:
        """Of such arrays."""
        return sum(math.prod(like.shape) * like.dtype.itemsize for like in self.template.values())

    def shortened(self) -> "Shapes":
        """The same with fewer rows, where there are very many: another site's rows may be a mere claim."""
        if not self.program.row_arguments or self.num_bytes <= _LARGE:
            return self
        length = self.template[self.program.row_arguments[0]].shape[0]
        rows = max(1, length * _LARGE // self.num_bytes)
        template = {
            name: jax.ShapeDtypeStruct((rows, *like.shape[1:]), like.dtype)
            if name in self.program.row_arguments
            else like
            for name, like in self.template.items()
        }
        return Shapes(self.program.with_rows(rows), template)


def shapes_of(problem: Problem) -> list[Shapes]:
    """The clients' programs, each with the shapes of some client's arrays; the first one's are of moderate size."""
    found: dict[Program, dict[str, jax.ShapeDtypeStruct]] = {}
    for bucket in problem.buckets:
        like = {name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in bucket.clients.data.items()}
        found.setdefault(bucket.clients.program, like)
    shapes = [Shapes(program, like) for program, like in found.items()]
    first = shapes[0] if shapes[0].num_bytes <= _LARGE else min(shapes, key=lambda each: each.num_bytes)
    return [first, *(each.shortened() for each in shapes if each is not first)]


def global_values(clients: Sequence[Shapes], theta: np.ndarray) -> dict[str, np.ndarray]:
    """The sites that are functions of the globals alone, at draws ``(chain, draw, d)``.

    No client's data are needed: a site is a function of the globals if it stays the same with other locals, with other
    data, and in another client's program.

    Parameters
    ----------
    clients
        The clients' programs with their shapes; the first one is evaluated at all draws.
    theta
        Draws.
    """
    rng = np.random.default_rng(4)
    flat = theta.reshape(theta.shape[0] * theta.shape[1], theta.shape[2])[
        : min(map(_batch, (client.program for client in clients)))
    ]

    def at(program: Program, data: Arrays) -> dict[str, np.ndarray]:
        locals_ = rng.normal(size=(len(flat), program.locals.size)) * 0.3
        return _values(program, data, np.concatenate([flat, locals_], axis=1))

    program, data = clients[0].program, clients[0].ones()
    here = at(program, data)
    elsewhere = [at(program, perturbed(data)), *(at(other.program, other.ones()) for other in clients[1:])]
    fixed = [
        name
        for name, value in here.items()
        if name not in program.locals.names and all(_same(value, found.get(name)) for found in elsewhere)
    ]
    padding = np.zeros((*theta.shape[:2], program.locals.size))
    values = constrained(program, data, np.concatenate([theta, padding], axis=-1))
    return {name: values[name] for name in fixed}


def _same(value: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and np.array_equal(value, other, equal_nan=True)
