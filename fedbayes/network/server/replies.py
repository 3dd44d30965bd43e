"""What replies look like, as the server works out from shapes alone."""

from typing import Any

import jax
import numpy as np

from fedbayes.contract.algorithm import Reply, Shared, Teams
from fedbayes.errors import ResultCode
from fedbayes.problem.problem import Problem
from fedbayes.rounds.exchange import Round, told
from fedbayes.rounds.programs import Programs


def part_of(shared: Shared, place: int) -> Shared:
    """What one client is told of a broadcast."""
    if isinstance(shared, Teams):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], told(shared, np.asarray([place])))
    return shared


def reply_template(programs: Programs, problem: Problem, order: Round, place: int, phase: int, first: Shared) -> Reply:
    """Names, shapes and dtypes of a client's reply.

    Parameters
    ----------
    programs, problem
        Of the fit.
    order, place
        What is asked, and of whom.
    phase, first
        The present phase, or the last one, and its first broadcast.
    """
    client = problem.client(problem.names[place])
    asked = (
        jax.tree.structure((order.shared, order.personal)),
        str(jax.tree.map(np.shape, (order.shared, order.personal))),
    )

    def made() -> Reply:
        shared = part_of(order.shared, place)
        personal = jax.tree.map(lambda leaf: np.asarray(leaf)[place], order.personal)
        update = programs.update(order.phase, order.updates[place])
        private: Any = ()
        if order.phase is not None or update.private:
            told_first = shared if order.phase is not None else part_of(first, place)
            begun = jax.eval_shape(programs.phases[phase].algorithm.init_client, client, told_first, order.key)
            private = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), begun)  # as it is kept
        inputs = jax.eval_shape(lambda key, shared: update.inputs(key, shared, client.num_locals), order.key, shared)
        # by the sites' own program, so that where these are in one process it is traced once
        one: Any = programs.one(order.phase, order.updates[place])
        reply, _ = one.trace(shared, personal, private, client, inputs).out_info
        found: Reply = reply if order.phase is None else reply._replace(info={})
        return found

    return programs.kept(("reply", order.phase, order.updates[place], client.program, *asked), made)


def nothing(template: Reply, order: Round, code: ResultCode) -> Reply:
    """The reply of a client that has not answered: zeros, and the reason."""
    zero = 0.0 if order.phase is not None else np.nan  # of which no result may be made unnoticed
    empty = jax.tree.map(lambda leaf: np.full(leaf.shape, zero if leaf.dtype.kind == "f" else 0, leaf.dtype), template)
    info = {
        name: np.full_like(value, np.nan) if value.dtype.kind == "f" else value for name, value in empty.info.items()
    }
    codes: Any = np.full_like(empty.code, int(code))
    return Reply(empty.total, empty.each, codes, info)
