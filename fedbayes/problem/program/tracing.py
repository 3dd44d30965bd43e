"""A program as JAX sees it: whether it is still the same, what shapes its terms have, and what its prior looks at."""

import hashlib
import re
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Program, with_log_dets
from fedbayes.runtime.lru import Kept


class Traced(NamedTuple):
    """One trace of a program on the shapes of one client's data; nothing was computed.

    Attributes
    ----------
    digest
        Of all operations and constants: another digest means another density.
    shapes
        Of each site's log-probability.
    prior
        The operations that lead to the log prior, as text.
    prior_reads_data
        Whether they begin at the data, which may all the same have no influence on its value.
    alone
        For each observed term that begins at the globals, and neither at data nor at locals, its operations as text.
    primitives
        Names of all operations, those inside loops and called functions included.
    """

    digest: str
    shapes: dict[str, tuple[int, ...]]
    prior: str
    prior_reads_data: bool
    alone: dict[str, str]
    primitives: frozenset[str]


_LAST: Kept[Traced] = Kept(256)


def last_trace(program: Program, client: ClientArrays) -> Traced:
    """The last trace of a program on a client's shapes; made now where there is none."""
    return _LAST.get(_key(program, client), lambda: traced(program, client))


def _key(program: Program, client: ClientArrays) -> Hashable:
    return program, tuple((name, array.shape, array.dtype.str) for name, array in client.arrays.items())


def traced(program: Program, client: ClientArrays) -> Traced:
    """Run the user's function once, on shapes alone.

    What a function depends on beside its arguments (variables of a notebook, attributes of an object) may have changed
    since it was last compiled; then its trace has changed as well.
    """
    data = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in client.arrays.items()}
    theta, z = (
        jax.ShapeDtypeStruct((block.size,), jnp.result_type(float)) for block in (program.globals, program.locals)
    )

    def terms(theta: Array, z: Array, data: dict[str, Array]) -> tuple:
        joint = program.log_factor(theta, z, data) if program.enumerated else ()
        return program.site_log_probs(theta, z, data), joint

    jaxpr, (out, _) = jax.make_jaxpr(terms, return_shape=True)(theta, z, data)
    variables = dict(zip(sorted(out), jaxpr.jaxpr.outvars, strict=False))
    prior, needed = leading_to(jaxpr.jaxpr, [var for name, var in variables.items() if name in program.prior_sites])
    shapes = {name: tuple(leaf.shape) for name, leaf in out.items()}
    reads_data = any(id(var) in needed for var in jaxpr.jaxpr.invars[2:])
    alone = {} if program.enumerated else _of_globals_alone(program, jaxpr.jaxpr, variables)
    return Traced(digest_of(jaxpr), shapes, prior, reads_data, alone, frozenset(_primitives(jaxpr.jaxpr)))


def _of_globals_alone(program: Program, jaxpr: Any, variables: dict[str, Any]) -> dict[str, str]:
    """See :attr:`Traced.alone`."""
    theta, *others = jaxpr.invars
    known = {*program.prior_sites, *with_log_dets(program.locals), *program.missing}
    found = {name: leading_to(jaxpr, [var]) for name, var in variables.items() if name not in known}
    return {
        name: text
        for name, (text, needed) in found.items()
        if id(theta) in needed and not any(id(var) in needed for var in others)
    }


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda value: hasattr(value, "eqns")):
            inner = getattr(inner, "jaxpr", inner)  # closed or open
            if hasattr(inner, "eqns"):
                yield from _primitives(inner)


def digest_of(jaxpr: Any) -> str:
    """A digest of all operations and constants of a trace."""
    # functions are printed with addresses that differ from one trace to the next
    digest = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(jaxpr)).encode())
    for constant in _constants(jaxpr):
        array = np.asarray(constant)
        digest.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
    return digest.hexdigest()


def _constants(closed: Any) -> Iterator[Any]:
    """Arrays that the traced function has closed over, at any depth."""
    yield from (each for each in closed.consts if not jnp.issubdtype(each.dtype, jax.dtypes.extended))
    for equation in closed.jaxpr.eqns:
        yield from (var.val for var in equation.invars if np.ndim(getattr(var, "val", 0)))
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda value: hasattr(value, "jaxpr")):
            if hasattr(inner, "consts"):
                yield from _constants(inner)


def leading_to(jaxpr: Any, wanted: list) -> tuple[str, set[int]]:
    """The operations that lead to ``wanted`` as text, and the identities of all variables that they need."""
    needed, found = set(map(id, wanted)), []
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in needed for var in equation.outvars):
            needed |= set(map(id, equation.invars))
            found.append(equation)
    names: dict[int, int] = {}
    text = []
    for equation in reversed(found):
        inputs, outputs = ([_named(var, names) for var in both] for both in (equation.invars, equation.outvars))
        shapes = [var.aval.str_short() for var in equation.outvars]
        text.append(f"{outputs} {shapes} = {equation.primitive} {equation.params} {inputs}")
    return re.sub(r"0x[0-9a-f]+", "", "\n".join(text)), needed


def _named(var: Any, names: dict[int, int]) -> str:
    """A literal as its value, a variable as a number in order of appearance."""
    return f"{var.val}" if hasattr(var, "val") else f"v{names.setdefault(id(var), len(names))}"
