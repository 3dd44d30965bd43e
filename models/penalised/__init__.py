"""Penalised linear regressions across clients: lasso, ridge, elastic net and regularised horseshoe.

Each client has coefficients of its own, and all share the penalty: how strongly it pulls is learned from everybody (Yue
2023, section 3.4.3). Given the error and the scale of each coefficient's prior the coefficients are Gaussian, so they
are integrated out exactly (`NormalRegression`), and drawn from their conditional law after the fit, at the client:
``fit.client_posterior(name)`` has them as ``theta``, ``fit.select()`` says which of them are included, and
``fit.predict(name, x=...)`` uses them. The rounds know the penalty's parameters. Except for the ridge, each client also
has one local latent for each coefficient, with a standard normal prior: it determines the scale of that coefficient.

`lasso`, `ridge`, `elastic_net` and `horseshoe` are programs; `NormalRegression` is a distribution for programs of one's
own; `ridge_log_factor` and `ridge_coefficients` are closed forms.
"""

from fedbayes.models.penalised.programs import elastic_net, horseshoe, lasso, ridge
from fedbayes.models.penalised.regression import NormalRegression
from fedbayes.models.penalised.ridge_exact import ridge_coefficients, ridge_log_factor
from fedbayes.models.penalised.simulated import YUE_CASES, simulate, simulate_case

__all__ = [
    "YUE_CASES",
    "NormalRegression",
    "elastic_net",
    "horseshoe",
    "lasso",
    "ridge",
    "ridge_coefficients",
    "ridge_log_factor",
    "simulate",
    "simulate_case",
]
