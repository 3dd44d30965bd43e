"""From a plan and priors to the program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedbayes.formula.families.family import Parameter, Scale, Summary, rounded
from fedbayes.formula.planned import Plan
from fedbayes.formula.program.gaps import write_gaps, write_products
from fedbayes.formula.program.predictors import write_predictor
from fedbayes.formula.program.priors import Priors
from fedbayes.formula.program.source import Source, finished, plain, write_likelihood, write_parameter


@dataclass(frozen=True)
class Program:
    """A program as text, with its priors and the names of its sites' entries."""

    text: str
    priors: Priors
    coords: Mapping[str, list[str]]
    dims: Mapping[str, list[str]]
    needs_rows: bool


def program_of(plan: Plan, given: Mapping[str, Any] | None) -> Program:
    """Write the program of a plan.

    Raises
    ------
    FormulaError
        A given prior is of no parameter, or can't be written; two parameters would have one name.
    """
    family, summary = plan.family, plan.summary
    source = Source(family, summary, Priors(given))
    main, *others = plan.predictors
    needs_rows = not any(predictor.says_rows for predictor in plan.predictors) and not (
        plan.outcome.trials or plan.outcome.errors
    )
    of_others = {predictor.parameter: predictor for predictor in others}
    write_gaps(source, plan.gaps)
    for predictor in plan.predictors:
        write_products(source, plan.gaps, predictor)
    write_predictor(source, main, family.scale(summary), family.intercept, needs_rows)
    for parameter in family.parameters:
        if parameter.name in of_others:
            write_predictor(source, of_others[parameter.name], scale_of(parameter, summary), True, False)
            source.add(f"{parameter.name} = {parameter.inverse}(eta_{parameter.name})")
        else:
            write_parameter(source, parameter)
    arguments = _arguments(plan, needs_rows)
    write_likelihood(source, plain(plan.outcome.name), arguments)
    source.priors.check_used()
    formulas = "; ".join(f"{name}: {text}" if name else text for name, text in plan.formulas.written.items())
    title = f"{' '.join(formulas.split())}, family {family.name}."
    if main.centred:
        title += " The columns of x are centred at everybody's means."
    return Program(finished(source, title, arguments), source.priors, source.coords, source.dims, needs_rows)


def _arguments(plan: Plan, needs_rows: bool) -> list[str]:
    found = [name for predictor in plan.predictors for name in predictor.names()]
    found += plan.gaps.names()
    found += ["rows"] if needs_rows else []
    found += ["trials"] if plan.outcome.trials else []
    found += ["errors"] if plan.outcome.errors else []
    found += ["weights"] if plan.outcome.weights else []
    if "cens" in plan.family.additions:
        found.append("observed")
    return found


def scale_of(parameter: Parameter, summary: Summary) -> Scale:
    """Scales of the linear predictor of a parameter, around what its default prior says in the middle."""
    if parameter.inverse == "expit":
        return Scale(0.0, 1.5, 1.0, 1.0)
    middle = np.median(np.asarray(parameter.prior(summary).sample(jax.random.key(0), (2001,))))
    return Scale(rounded(float(np.log(middle))), 1.5, 1.0, 1.0)
