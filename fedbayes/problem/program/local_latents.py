"""What a server may know of a client's local latents: names, shapes, and what their priors are about."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import IdentityTransform
from numpyro.handlers import seed, substitute
from numpyro.infer.util import compute_log_probs

from fedbayes.problem.program.program import Block, Program, unconstrained_substitute
from fedbayes.problem.program.tracing import leading_to
from fedbayes.runtime.lru import Kept


class LocalLatents(NamedTuple):
    """The continuous local latents of one client's program.

    Attributes
    ----------
    block
        Their layout in unconstrained space.
    real
        Those whose support is all real numbers, so that they are their own unconstrained values.
    related
        Those whose prior depends on other latents, global or local.
    independent
        Whether the entries along the first axis are independent of each other given the globals.
    """

    block: Block
    real: tuple[str, ...]
    related: tuple[str, ...]
    independent: bool = False

    @property
    def group_size(self) -> int:
        """Most locals that depend on each other given the globals."""
        return int(self.block.groups().shape[1]) if self.independent else self.block.size


_FOUND: Kept[LocalLatents] = Kept(64)


def local_latents(program: Program, template: Mapping[str, jax.ShapeDtypeStruct]) -> LocalLatents:
    """The local latents of a program, by one trace on shapes, which is made once for a program."""
    return _FOUND.get(program, lambda: _traced(program, template))


def _traced(program: Program, template: Mapping[str, jax.ShapeDtypeStruct]) -> LocalLatents:
    names, real = program.locals.names, []
    if not names:
        return LocalLatents(program.locals, (), ())
    blocks = dict(program.globals.shapes) | dict(program.locals.shapes)

    def terms(params: dict[str, Array], data: dict[str, Array]) -> dict[str, Array]:
        model = substitute(seed(program.model, 0), substitute_fn=unconstrained_substitute(params))
        with numpyro.validation_enabled(False):
            found, sites = compute_log_probs(model, (), {**program.static, **data}, {}, sum_log_prob=False)
        for name in names:
            transform = biject_to(sites[name]["fn"].support)
            if isinstance(getattr(transform, "base_transform", transform), IdentityTransform):
                real.append(name)
        return {name: found[name] for name in names}

    params = {name: jnp.asarray(np.full(shape, 0.1), program.dtype) for name, shape in blocks.items()}
    jaxpr, out = jax.make_jaxpr(terms, return_shape=True)(params, dict(template))
    inputs = dict(zip(sorted(params), jaxpr.jaxpr.invars, strict=False))  # the data's come after them
    outputs = dict(zip(sorted(out), jaxpr.jaxpr.outvars, strict=True))

    def depends(name: str) -> bool:
        needed = leading_to(jaxpr.jaxpr, [outputs[name]])[1]
        return any(id(var) in needed for other, var in inputs.items() if other != name)

    return LocalLatents(program.locals, tuple(dict.fromkeys(real)), tuple(filter(depends, names)))
