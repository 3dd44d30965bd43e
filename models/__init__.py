"""Ready client programs: one NumPyro model a module, with data or a simulator and, where there is one, a closed form.

Every module offers ``model`` (the program of ONE client; its own latents stand inside ``fedbayes.local()``) and
``simulate(key, ...) -> (clients, truth)``. ``clients`` is ``{name: {argument of the model: NumPy array}}``.

==========================  =====================================================================================
`heart_disease`             logistic regression over the four hospitals of UCI Heart Disease (data included)
`eight_schools`             Rubin's eight schools, one school a client (data included)
`linear`                    linear regression with known noise; exact posterior
`hierarchical_linear`       linear regressions with a common distribution of coefficients (HM2); exact for known tau
`gp`                        Gaussian processes with a common kernel (FGPR), kernels, exact and sparse likelihoods
`penalised`                 lasso, ridge, elastic net, horseshoe: penalised regressions, for variable selection
==========================  =====================================================================================

The docstring of each program says which formula is its equal, or why none is.

For `fedbayes.regression` no program is needed: `tables` has real tables with named columns (hospitals, survival with
lung cancer at 18 institutions, students of two schools, 13 trials of a vaccine).
"""

if __name__ != "fedbayes.models":
    raise ImportError(
        f"this folder was imported as {__name__!r}, which would load a second copy of every model; "
        "write `import fedbayes.models` instead"
    )

from fedbayes.models import eight_schools, gp, heart_disease, hierarchical_linear, linear, penalised, tables

__all__ = ["eight_schools", "gp", "heart_disease", "hierarchical_linear", "linear", "penalised", "tables"]
