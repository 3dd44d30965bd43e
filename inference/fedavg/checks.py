"""Whether gradient steps can be stable, once the clients have told their curvature."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from fedbayes.rounds.state import RunState


def check_step(step_size: float | None, names: Sequence[str]) -> Callable[[RunState], None]:
    """A check of plain gradient steps against the clients' largest curvatures at the start.

    A quadratic loss of curvature H diverges under steps of ``2 / H`` and more. From ``1 / H`` on the results on
    FedAvg's fixed point do not hold (Su, Xu and Yang 2023, who assume less).
    """

    def check(probed: RunState) -> None:
        curvatures = np.max(np.asarray(probed.state.curvatures), axis=0)
        if step_size is None or not np.any(curvatures > 0.0):
            return
        worst = int(np.nanargmax(curvatures))
        limit, name = 1.0 / curvatures[worst], names[worst]
        if step_size >= 2.0 * limit:
            raise ValueError(
                f"`step_size` is {step_size:g}, but the loss of client '{name}' has the curvature "
                f"{curvatures[worst]:.3g} at the start: steps of {2.0 * limit:.3g} or more diverge there. Write "
                f"`step_size={limit / 2.0:.2g}`, or leave it out."
            )
        if step_size >= limit:
            warnings.warn(
                f"`step_size` is {step_size:g}, and the loss of client '{name}' has the curvature "
                f"{curvatures[worst]:.3g} at the start: steps of {limit:.3g} or more overshoot there, and what is "
                f"known of FedAvg's fixed point does not hold. Write `step_size={limit / 2.0:.2g}`, or leave it out.",
                stacklevel=2,
            )

    return check
