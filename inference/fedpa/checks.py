"""What can be wrong with FedPA's options on given clients."""

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.inference.fedpa.options import STEPPING, Options
from fedbayes.inference.options import DENSE_LIMIT, check_batch
from fedbayes.problem.roster import Roster


def check_roster(config: Options, roster: Roster) -> None:
    """Refuse options that don't fit the clients and the globals."""
    check_batch(config.batch_size, roster)
    rows, size = roster.rows, roster.size
    if config.solver == "iasg" and config.batch_size is not None and config.batch_size >= rows.min() and size:
        raise ClientDataError(
            f"`batch_size` is {config.batch_size}, all rows of client '{roster.names[int(np.argmin(rows))]}': its "
            "gradients have no noise to average. Write a smaller one."
        )
    most = size + int(roster.num_locals.max())
    dense = config.solver not in STEPPING or config.preconditioner == "dense" or config.init == "mode"
    if most > DENSE_LIMIT and (dense or config.covariance == "sample"):
        raise ValueError(
            f"A client has {most} latents, more than the {DENSE_LIMIT} for which matrices are sent or factorised. "
            "Write `FedPA(solver='iasg', batch_size=..., init='zero', preconditioner='none', step_size=...)`."
        )
    if size > DENSE_LIMIT and most > size:
        raise ValueError(
            f"The model has {size} globals and local latents: above {DENSE_LIMIT} globals local latents can't be "
            "integrated out."
        )
