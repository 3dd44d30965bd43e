"""What a fit tells its user, and whether that is right: the draws of ``fit.idata`` against pooled NUTS."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import fedbayes as fb
from examples.measure import first_sentence
from fedbayes.results import quantities

MEAN_LIMIT, SD_LIMIT = 0.1, 0.1  # posterior sds, and the sds' ratio to NUTS's less one
MIXED = 1.05  # R-hat of a reference
USABLE = "fit.idata can be used"
WRONG = "SILENTLY WRONG"

RULES = """\
What is compared are the means and sds of the unconstrained globals, by the draws of `fit.idata`.

- *right*: `repr(fit)` ends with "fit.idata can be used", every mean is within 0.1 of NUTS's, in its posterior sds, and
  every sd within 10 percent, beside three Monte Carlo standard errors of NUTS.
- *flagged*: `repr(fit)` ends with "don't rely on fit.idata"; the numbers show what the draws would have said.
- *within its error*: it can be used by its own words, it is further off than that, but within three standard errors of
  what `fit.error` states as its Monte Carlo error and NUTS's together, beside the same 0.1 and 10 percent.
- *tail told*: the means are within that error, and so are all sds but those of quantities of which `repr(fit)` says
  that their tail is too long for their sd.
- *SILENTLY WRONG*: it can be used by its own words, and it is further off than that.
- *NUTS diverges*: the same, but NUTS has divergent transitions, so that its moments may be the wrong ones.
- *refused*: a `ClientDataError` or `ModelError` before work starts. *gives up*: a `FederatedError` in a round. *RAW*:
  any other error.
- *no reference*: NUTS has not run, or not in time, or its four chains differ (R-hat above 1.05). *too slow*: the fit
  took more than {limit}.
"""


def answered(fitted: fb.FederatedFit) -> dict[str, Any]:
    """What the user gets: moments of the draws, what the fit says of their error, and whether they can be used."""
    theta, found = fitted.theta, {}
    draws = theta.reshape(-1, theta.shape[-1])
    if fitted.correction is not None:
        own = fitted.error
        found = {
            "own_mcse": np.asarray(own["mean_mcse"]).tolist(),
            "own_mcse_sd": np.asarray(own["sd_mcse"]).tolist(),
            "long_tailed": long_tailed(fitted),
            **{name: own.attrs[name] for name in ("correction", "mean_error", "sd_error", "effective_draws", "modes")},
            "weights_k_hat": own.attrs["k_hat"],
        }
    return {
        **found,
        "drawn_mean": draws.mean(axis=0).tolist(),
        "drawn_sd": draws.std(axis=0).tolist(),
        "conclusion": repr(fitted).rsplit("  verdict   ", 1)[-1],
        "why": first_sentence(fitted.trouble()),
    }


def long_tailed(fitted: fb.FederatedFit) -> list[str]:
    """Labels of the globals whose sd is not to be trusted by the fit's own words, which name constrained entries."""
    told, entries, found = quantities.long_tailed(fitted.fitted), fitted.error["quantity"].values.tolist(), []
    for site in {label.split("[")[0] for label in fitted.global_labels}:
        named, labels = (
            [each for each in many if each.split("[")[0] == site] for many in (entries, fitted.global_labels)
        )
        if len(named) == len(labels):  # not so for a simplex and its like
            found += [label for label, entry in zip(labels, named, strict=True) if entry in told]
    return found


def verdict(fit: Mapping[str, Any], nuts: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict in a word, and the worst errors with the globals that have them, where there is a reference."""
    if fit.get("slow"):
        return {"verdict": "too slow"}
    if "died" in fit:
        return {"verdict": "RAW"}
    if "error" in fit:
        return {"verdict": fit["error"]["kind"]}
    flagged = not fit["conclusion"].startswith(USABLE)
    if "mean" not in nuts:
        return {"verdict": "flagged" if flagged else "no reference"}
    found = errors(fit, nuts)
    if flagged:
        return {"verdict": "flagged", **found}
    if nuts["r_hat"] > MIXED:
        return {"verdict": "no reference", **found}
    said = {"within": "right", "covered": "within its error", "told": "tail told"}
    off = "NUTS diverges" if nuts["diverging"] else WRONG
    return {"verdict": next((word for name, word in said.items() if found[name]), off), **found}


def errors(fit: Mapping[str, Any], nuts: Mapping[str, Any]) -> dict[str, Any]:
    """How far the draws' moments are from NUTS's, and whether that is within the limits, or within the stated error."""
    assert fit["labels"] == nuts["labels"], (fit["labels"], nuts["labels"])
    mean, sd, mcse, mcse_sd = (np.asarray(nuts[name]) for name in ("mean", "sd", "mcse", "mcse_sd"))
    of_mean, ratio = np.abs(np.asarray(fit["drawn_mean"]) - mean) / sd, np.asarray(fit["drawn_sd"]) / sd
    of_sd = np.abs(ratio - 1.0)
    at, at_sd = int(np.argmax(of_mean)), int(np.argmax(of_sd))

    def within(slack: np.ndarray, slack_sd: np.ndarray, left_out: Any = ()) -> bool:
        fine = (of_sd <= SD_LIMIT + 3.0 * slack_sd) | np.isin(fit["labels"], left_out)
        return bool(np.all(of_mean <= MEAN_LIMIT + 3.0 * slack) and np.all(fine))

    own, own_sd = (np.asarray(fit.get(name, 0.0)) for name in ("own_mcse", "own_mcse_sd"))
    return {
        "mean_error": float(of_mean[at]),
        "mean_at": fit["labels"][at],
        "sd_ratio": float(ratio[at_sd]),
        "sd_at": fit["labels"][at_sd],
        "within": within(mcse, mcse_sd),
        "covered": within(np.hypot(mcse, own), np.hypot(mcse_sd, own_sd)),
        "told": within(np.hypot(mcse, own), np.hypot(mcse_sd, own_sd), fit.get("long_tailed", ())),
    }


def of_nuts(nuts: Mapping[str, Any]) -> str:
    """The reference in a few words: its Monte Carlo errors, and what is wrong with it."""
    if "mean" not in nuts:
        return "too slow" if nuts.get("slow") else nuts.get("last", "")
    words = f"{max(nuts['mcse']):.3f}, {max(nuts['mcse_sd']):.3f}"
    words += f"; R-hat {nuts['r_hat']:.2f}" if nuts["r_hat"] > 1.01 else ""
    return words + (f"; {nuts['diverging']} diverging" if nuts["diverging"] else "")


def told(fit: Mapping[str, Any]) -> str:
    """What the fit says where it is not to be used, or there is none."""
    if "error" in fit:
        where = f" ({fit['error']['where']})" if fit["error"]["kind"] == "RAW" else ""
        return f"{fit['error']['class']}: {fit['error']['message']}{where}"
    return fit.get("why", fit.get("last", ""))
