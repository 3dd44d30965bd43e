"""Federated Bayesian inference for NumPyro programs.

One client's model is a NumPyro function; :func:`fit_federated` fits it to the clients' data, which never leave them,
and ``fit.idata`` is the global posterior for ArviZ.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbayes.calibration.calibrate import calibrate
    from fedbayes.calibration.result import Calibration
    from fedbayes.calibration.simulators import prior_simulator
    from fedbayes.errors import (
        ClientDataError,
        FedbayesError,
        FederatedError,
        FormulaError,
        MergeWarning,
        ModelError,
        NotConvergedWarning,
        ReportError,
        ResultCode,
        SiteLeftOutWarning,
        SlowFitWarning,
        UnreliableWarning,
    )
    from fedbayes.fit import fit_federated, load_fit
    from fedbayes.formula.agreed import Agreed
    from fedbayes.formula.reading.coefficients import summary_table
    from fedbayes.formula.reading.comparisons import comparisons, slopes
    from fedbayes.formula.reading.effects import random_effects
    from fedbayes.formula.reading.predictions import predictions
    from fedbayes.formula.reading.spread import heterogeneity
    from fedbayes.formula.reading.survival import survival_curves
    from fedbayes.formula.regression import Regression, regression
    from fedbayes.inference import (
        EP,
        FALD,
        GIFAIR,
        CorrelatedClients,
        FedAvg,
        FedEnsemble,
        FedPA,
        FedProx,
        Laplace,
        OneShot,
    )
    from fedbayes.numerics.gaussian import Gaussian
    from fedbayes.owner.disclosure import disclosure
    from fedbayes.owner.rules import DisclosureRules
    from fedbayes.problem.data.tables import clients_from_dataframe
    from fedbayes.problem.program.split import local
    from fedbayes.questions.fairness import fairness_report
    from fedbayes.questions.gain import federation_gain
    from fedbayes.questions.hypothesis import excludes, probability_of_direction
    from fedbayes.questions.regression.estimates import Estimates
    from fedbayes.results.fit import FederatedFit
    from fedbayes.runtime.compiling import cache_programs
    from fedbayes.table_one.describe import describe

    __version__: str

if __name__ != "fedbayes":
    raise ImportError(f"this is `fedbayes`, not `{__name__}`: write `import fedbayes`")

# In a checkout `inference/`, `models/` and `theory/` stand beside this folder; an installed package has them inside,
# and a linked one (`pip install -e`) has a finder of its own. The folder above holds this one too: hence the check of
# the name.
_CHECKOUT = Path(__file__).parent.parent
if not importlib.util.find_spec("fedbayes.inference") and (_CHECKOUT / "inference" / "__init__.py").exists():
    __path__.append(str(_CHECKOUT))

__all__ = [
    "EP",
    "FALD",
    "GIFAIR",
    "Agreed",
    "Calibration",
    "ClientDataError",
    "CorrelatedClients",
    "DisclosureRules",
    "Estimates",
    "FedAvg",
    "FedEnsemble",
    "FedPA",
    "FedProx",
    "FedbayesError",
    "FederatedError",
    "FederatedFit",
    "FormulaError",
    "Gaussian",
    "Laplace",
    "MergeWarning",
    "ModelError",
    "NotConvergedWarning",
    "OneShot",
    "Regression",
    "ReportError",
    "ResultCode",
    "SiteLeftOutWarning",
    "SlowFitWarning",
    "UnreliableWarning",
    "cache_programs",
    "calibrate",
    "clients_from_dataframe",
    "comparisons",
    "describe",
    "disclosure",
    "excludes",
    "fairness_report",
    "federation_gain",
    "fit_federated",
    "heterogeneity",
    "load_fit",
    "local",
    "predictions",
    "prior_simulator",
    "probability_of_direction",
    "random_effects",
    "regression",
    "slopes",
    "summary_table",
    "survival_curves",
]

# Importing the package loads none of it, nor JAX: a name is loaded when it is first used. The imports above tell
# type checkers the same.
_HOMES = {
    "fedbayes.calibration.calibrate": ["calibrate"],
    "fedbayes.calibration.result": ["Calibration"],
    "fedbayes.calibration.simulators": ["prior_simulator"],
    "fedbayes.runtime.compiling": ["cache_programs"],
    "fedbayes.errors": [
        "ClientDataError",
        "FedbayesError",
        "FederatedError",
        "FormulaError",
        "MergeWarning",
        "ModelError",
        "NotConvergedWarning",
        "ReportError",
        "ResultCode",
        "SiteLeftOutWarning",
        "SlowFitWarning",
        "UnreliableWarning",
    ],
    "fedbayes.fit": ["fit_federated", "load_fit"],
    "fedbayes.formula.reading.coefficients": ["summary_table"],
    "fedbayes.formula.reading.comparisons": ["comparisons", "slopes"],
    "fedbayes.formula.reading.effects": ["random_effects"],
    "fedbayes.questions.regression.estimates": ["Estimates"],
    "fedbayes.formula.reading.predictions": ["predictions"],
    "fedbayes.formula.reading.spread": ["heterogeneity"],
    "fedbayes.formula.reading.survival": ["survival_curves"],
    "fedbayes.formula.agreed": ["Agreed"],
    "fedbayes.formula.regression": ["Regression", "regression"],
    "fedbayes.numerics.gaussian": ["Gaussian"],
    "fedbayes.inference": [
        "EP",
        "FALD",
        "GIFAIR",
        "CorrelatedClients",
        "FedAvg",
        "FedEnsemble",
        "FedPA",
        "FedProx",
        "Laplace",
        "OneShot",
    ],
    "fedbayes.owner.disclosure": ["disclosure"],
    "fedbayes.owner.rules": ["DisclosureRules"],
    "fedbayes.problem.program.split": ["local"],
    "fedbayes.problem.data.tables": ["clients_from_dataframe"],
    "fedbayes.questions.fairness": ["fairness_report"],
    "fedbayes.questions.gain": ["federation_gain"],
    "fedbayes.questions.hypothesis": ["excludes", "probability_of_direction"],
    "fedbayes.results.fit": ["FederatedFit"],
    "fedbayes.table_one.describe": ["describe"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            value = version("fedbayes")
        elif name in _HOME:
            value = getattr(importlib.import_module(_HOME[name]), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"fedbayes.{name}"):
            return importlib.import_module(f"fedbayes.{name}")
        else:
            raise AttributeError(f"module 'fedbayes' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
