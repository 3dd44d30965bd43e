"""What the check of a Gaussian answer has shown, in numbers that are saved with a fit: to say it again asks nobody."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from fedbayes.correction.correct import Correction
from fedbayes.correction.images import Looked
from fedbayes.correction.pool import LEAST, NOISE
from fedbayes.errors import K_HAT_LIMIT

_ENOUGH = 0.25  # error of means and sds up to which clients' Gaussians are compared unasked


class Checked(NamedTuple):
    """The attributes of ``FederatedFit.error`` that are shown.

    Attributes
    ----------
    correction
        ``"applied"``, ``"not needed"`` or ``"unreliable"``.
    reliable
        Whether the weights can be trusted.
    mean_error, sd_error
        Root mean squares over the globals whose tails are short enough to tell: of the means, in posterior sds, and of
        the sds, relative; NaN where that is none.
    distance
        A bound of the error of every mean, in posterior sds.
    k_hat, effective_draws, noise
        Of the weights: their tail's shape, the effective number of draws, the relative variance of the clients'
        estimates in sum.
    draws
        Number of all weights.
    modes
        Separate modes that were found and hold some of the posterior's mass.
    all_modes
        Whether the draws are of all modes that were found.
    long_tailed
        Quantities of the user's with a tail too long for their sd.
    untold
        Number of globals whose tails are too long to tell the error of their sd, and perhaps of their mean.
    looked
        Where other modes were looked for; ``None`` where that was not written down, by early versions.
    """

    correction: str
    reliable: bool
    mean_error: float
    sd_error: float
    distance: float
    k_hat: float
    effective_draws: float
    noise: float
    draws: int
    modes: int = 1
    all_modes: bool = True
    long_tailed: tuple[str, ...] = ()
    untold: int = 0
    looked: Looked | None = None

    @classmethod
    def of(cls, found: Correction) -> Self:
        """The numbers of a correction."""
        told: dict[str, Any] = found.dataset([str(i) for i in range(found.approximation.shift.shape[-1])]).attrs
        return cls(
            told["correction"], bool(told["reliable"]), told["mean_error"], told["sd_error"], found.distance,
            told["k_hat"], told["effective_draws"], told["noise"], int(found.pool.weights.size),
            found.modes, found.all_modes, untold=int(sum(~found.short_tails[1])), looked=found.looked,
        )  # fmt: skip

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        """From a file."""
        looked = told.get("looked")
        lists = {"long_tailed": tuple(told.get("long_tailed", ())), "looked": Looked(*looked) if looked else None}
        return cls(**{**told, **lists})

    def lines(self) -> list[str]:
        """How far off the Gaussian is, and where other modes were looked for, for ``repr``."""
        looked = [f"  modes     {self._modes_found(self.looked)}"] if self.reliable and self.looked else []
        return [self._gaussian_line(), *looked]

    def _modes_found(self, looked: Looked) -> str:
        """How many, and where they were looked for: one that is nowhere there is not known of."""
        images = "image" if looked.symmetries == 1 else "images"
        places = [f"at {looked.symmetries} {images} under sign changes and label swaps"] if looked.symmetries else []
        places += ["at draws as wide as the prior"] if looked.as_wide else []
        if looked.starts > 1:
            came = "" if looked.arrived == looked.starts else f" ({looked.arrived} searches converged)"
            places += [f"from {looked.starts} starting points{came}"]
        elif not looked.as_wide:
            places += ["from one starting point"]
        found = "one found" if self.modes == 1 else f"{self.modes} found"
        return f"{found}, looked for {', '.join(places)}"

    def _gaussian_line(self) -> str:
        tail = f"{self.effective_draws:,.0f} effective draws of {self.draws:,}"
        if self.correction == "unreliable" and not self.all_modes:
            return "  Gaussian  around one of many separate modes, of which fit.idata lacks some; see fit.trouble()"
        if self.correction == "unreliable" and not math.isfinite(self.k_hat):
            return "  Gaussian  not to be trusted: its draws can't be weighed; see fit.trouble()"
        if self.correction == "unreliable":
            return f"  Gaussian  not to be trusted (k-hat {self.k_hat:.2f}, {tail}); see fit.trouble()"
        if self.modes > 1:
            return f"  Gaussian  around one of {self.modes} separate modes; fit.idata has draws of all of them ({tail})"
        if self.correction == "not needed":
            return f"  Gaussian  exact to {max(self.distance, 1e-6):.0e} posterior sds, by importance weights"
        left_out = f" ({self.untold} with long tails left out)" if self.untold else ""
        of_means, of_sds = f"{self.mean_error:.2g} posterior sds", f"{100.0 * self.sd_error:.2g} percent"
        of_means = "an unknown amount" if math.isnan(self.mean_error) else of_means
        of_sds = "an unknown amount in sds" if math.isnan(self.sd_error) else f"{of_sds} in sds{left_out}"
        off = f"{of_means} in means, {of_sds}"
        return f"  Gaussian  off by {off}; fit.idata is corrected ({tail})"

    @property
    def gaussian_enough(self) -> bool:
        """Whether what the clients' Gaussians say of each other can be shown without being asked for."""
        return self.reliable and self.mean_error <= _ENOUGH and self.sd_error <= _ENOUGH  # NaN is not

    def despite(self) -> str:
        """What the weights have saved of a fit that has not converged; empty if nothing."""
        if not self.reliable:
            return ""
        if self.correction != "applied":
            right = f"to {max(self.distance, 1e-6):.0e} posterior sds"
            return f"`fit.idata` is right all the same, {right}, by importance weights that can be trusted."
        return (
            "`fit.idata` is corrected all the same, by importance weights that can be trusted "
            f"({self.effective_draws:,.0f} effective draws)."
        )

    def trouble(self) -> str:
        """Why the answer can't be trusted, and what to do; empty if it can."""
        if self.reliable:
            return ""
        if not math.isfinite(self.k_hat):
            return (
                "The draws can't be weighed: one of them has all the weight, or a client's log-likelihoods are no "
                "numbers, or larger than any data make them. `fit.idata` has the Gaussian's draws, whose error is not "
                "known. Look for a client whose data or model give such numbers (`fit.loo()` asks each for its own); "
                "where there is none, write the model in another parametrisation, or try `fit.exact()`."
            )
        why = (
            f"k-hat is {self.k_hat:.2f} (the limit is {K_HAT_LIMIT}), with {self.effective_draws:.0f} effective draws "
            f"(at least {LEAST} are needed)"
        )
        if self.k_hat <= K_HAT_LIMIT and self.effective_draws >= LEAST and self.noise <= NOISE:
            why = "the Gaussian's means are off by more than 3 posterior sds, and single draws hold much of the weight"
        if self.k_hat <= K_HAT_LIMIT and self.noise > NOISE:
            return (
                "The clients' likelihoods are known too inexactly for importance weights: even with many draws of "
                f"their locals the estimates have the relative variance {self.noise:.2g} in sum (the limit is "
                f"{NOISE:g}). `fit.idata` has the Gaussian's draws, whose error is not known. Write the locals in "
                "another parametrisation, in which they are nearer to Gaussian given the globals, or integrate some "
                "of them out in the model."
            )
        if not self.all_modes:
            return (
                "By the symmetries of the program, and the modes that were found, the posterior has more separate "
                "modes than the draws can cover: the "
                "Gaussian is around one of them, and so are the draws of `fit.idata`. Break the symmetry: constrain "
                "a sign (`HalfNormal`), order the components (`OrderedTransform`), or fix one of them."
            )
        return (
            f"The posterior is too far from Gaussian for importance weights: {why}. `fit.idata` has the Gaussian's "
            "draws, whose error is not known. Write the model in another parametrisation, nearer to Gaussian "
            "in unconstrained space, or try `fit.exact()`: its Markov chains say whether they have mixed."
        )
