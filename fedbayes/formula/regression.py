"""``regression``: a formula and clients' tables in, a NumPyro program with its data out."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import biject_to

from fedbayes.errors import ClientDataError, FormulaError
from fedbayes.fit import fit_federated
from fedbayes.formula.agreed import Agreed
from fedbayes.formula.described import Parts, described, effects_of
from fedbayes.formula.design.agreement import check_declared
from fedbayes.formula.design.everybody import Tables
from fedbayes.formula.design.factors import numbers_of
from fedbayes.formula.design.tables import Table, tables_of
from fedbayes.formula.families import Family, family_of
from fedbayes.formula.families.cox import NO_TIMES
from fedbayes.formula.notes import single_rows
from fedbayes.formula.outcome import OutcomePlan, arguments_of, plan_outcome
from fedbayes.formula.planned import Plan, agree_on, columns_read, groups_of, plan, read_formulas, settled
from fedbayes.formula.prior_predictive import prior_predictive
from fedbayes.formula.program.gaps import COUNT, Gaps
from fedbayes.formula.program.predictor import Predictor
from fedbayes.formula.program.priors import Prior
from fedbayes.formula.program.source import compiled
from fedbayes.formula.writing import Program, program_of
from fedbayes.results.arviz import shown
from fedbayes.results.fit import FederatedFit
from fedbayes.results.saved.regression import Carried, Regressed, carry
from fedbayes.runtime.keys import typed_key
from fedbayes.runtime.precision import computing


@dataclass(frozen=True)
class Regression:
    """A regression by a formula: the program of one client, and every client's data for it.

    ``fedbayes.fit_federated(reg.model, reg.clients, coords=reg.coords, dims=reg.dims, key=...)`` fits it, and so does
    :meth:`fit`. Printed, it shows the formula, the family, what was agreed, and every prior.

    Attributes
    ----------
    formula
        As it was written; of a mapping, the formula of each parameter.
    family
        The family's name.
    link
        The link's.
    model
        The program of ONE client, an ordinary NumPyro function.
    source
        Its text, which can be read, edited, and run by ``exec``.
    clients
        From client name to the program's arguments, as ``fit_federated`` takes them; empty where the regression was
        made of an agreement alone.
    coords, dims
        Names of the entries of coefficients, for ArviZ.
    priors
        The distribution of each parameter. That of ``Intercept`` is about the intercept at everybody's mean covariates.
    terms
        The names of the terms, as in the posterior.
    groups
        Of each client, the labels of the groups within it, in the order of their effects, by group. They stand here
        alone, and in no message.
    notes
        What is right but may surprise: levels that one client has alone, outcomes that a level separates, groups of
        one row, rows that were left out.
    agreed
        What all clients agree on, which :meth:`Agreed.save` writes to a file.

    See Also
    --------
    regression : Makes it from a formula.
    predictions : Outcomes of new rows.
    summary_table : The coefficients, in the units of the data.

    Examples
    --------
    >>> import pandas as pd, fedbayes as fb
    >>> table = pd.DataFrame({"y": [1.0, 2.0, 1.5, 2.5], "x": [0.0, 1.0, 0.0, 1.0]})
    >>> reg = fb.regression("y ~ x", clients={"north": table, "south": table})
    >>> list(reg.clients), reg.link
    (['north', 'south'], 'identity')
    """

    formula: str | Mapping[str, str]
    family: str
    link: str
    model: Callable[..., None]
    source: str
    clients: Mapping[str, Mapping[str, Any]]
    coords: Mapping[str, list[str]]
    dims: Mapping[str, list[str]]
    priors: Mapping[str, dist.Distribution]
    terms: tuple[str, ...]
    groups: Mapping[str, Mapping[str, tuple[str, ...]]]
    notes: tuple[str, ...]
    agreed: Agreed
    _predictors: tuple[Predictor, ...] = field(repr=False)
    _outcome: OutcomePlan = field(repr=False)
    _family: Family = field(repr=False)
    _written: Mapping[str, Prior] = field(repr=False)
    _needs_rows: bool = field(repr=False)
    _reads: tuple[str, ...] = field(repr=False)
    _gaps: Gaps = field(repr=False)

    @property
    def parts(self) -> Parts:
        """What it was made of, for whoever reads its fits."""
        return Parts(self._predictors, self._outcome, self._family, self._needs_rows, self._gaps)

    @property
    def columns(self) -> dict[str, list[str]]:
        """Names of the columns of the program's arguments: ``fit.disclosure(columns=reg.columns)`` speaks by them."""
        return {f"x{each.suffix}": list(each.design.names) for each in self._predictors if each.design.width}

    @property
    def described(self) -> Regressed:
        """What is saved of it with a fit: what it was, and how its parameters are read; nothing of a client."""
        formulas = self.formula if isinstance(self.formula, Mapping) else {"": self.formula}
        priors = {
            f"{name}_centred" if self._is_centred(name) else name: _in_words(text)
            for name, text, _ in self._written.values()
        }
        return described(self.parts, formulas, self.source, priors, self.coords, self.dims)

    @property
    def carried(self) -> Carried:
        """What its program carries: :attr:`described`, and what is the clients' own, which is not saved."""
        return Carried(self.described, effects_of(self.parts), self.groups, self._unconstrained, self)

    def _unconstrained(self, posterior: Any) -> np.ndarray:
        """Draws of the globals, each without its bounds, shape ``(draws, d)``."""
        columns = []
        with computing():
            for name, prior in self.priors.items():
                site = f"{name}_centred" if shown(f"{name}_centred") in posterior else name
                values = np.asarray(posterior[shown(site)], float)
                free = np.asarray(biject_to(prior.support).inv(values))
                columns.append(free.reshape(values.shape[0] * values.shape[1], -1))
        return np.concatenate(columns, axis=1)

    def _is_centred(self, name: str) -> bool:
        """Whether the prior of an intercept is about that at everybody's mean covariates."""
        return f'"{name}_centred"' in self.source

    def fit(self, *, key: Array, **options: Any) -> FederatedFit:
        """Fit it: ``fit_federated`` with this program, its data, and the names of coefficients.

        Parameters
        ----------
        key
            ``jax.random.key(seed)``.
        **options
            Those of :func:`fedbayes.fit_federated`, such as ``method``.

        Returns
        -------
        FederatedFit
            The fit.

        Raises
        ------
        ClientDataError
            The regression was made of an agreement alone, and has nobody's rows.

        Examples
        --------
        >>> reg.fit(key=jax.random.key(0)).idata  # doctest: +SKIP
        """
        self._check_clients()
        coords = {**self.coords, **options.pop("coords", {})}
        dims = {**self.dims, **options.pop("dims", {})}
        return fit_federated(self.model, self.clients, key=key, coords=coords, dims=dims, **options)

    def prior_predictive(self, *, key: Array, num_draws: int = 500) -> Any:
        """Parameters from their priors, and outcomes at all clients' rows from the model, for ArviZ.

        Parameters are drawn once for all clients, effects of groups and outcomes at each client given these. Censored
        times stand among the observed ones as they are, while those that are drawn are not censored. The observed
        outcomes are in it as well, so this is for a process that may hold the clients' data.

        Parameters
        ----------
        key
            ``jax.random.key(seed)``.
        num_draws
            Draws of the prior.

        Returns
        -------
        InferenceData or DataTree
            The group ``prior`` has what ``fit.idata.posterior`` has, and ``prior_predictive`` and ``observed_data`` the
            outcomes of all clients, one after the other, labelled ``client[i]``. With ArviZ 0.x
            ``fit.idata.extend(...)`` takes it in, with 1.x ``fit.idata.update(...)``.

        Raises
        ------
        ClientDataError
            The regression was made of an agreement alone, and has nobody's rows.
        FormulaError
            No times can be drawn from a partial likelihood, of the family ``"cox"``.
        ValueError
            ``num_draws`` is no number from 1.

        See Also
        --------
        FederatedFit.check : The same of the posterior.
        FederatedFit.predictive_check : Where each client's outcomes lie, by tail probabilities.

        Examples
        --------
        >>> import arviz as az, jax, fedbayes as fb
        >>> rows = {"a": {"x": [0.0, 1.0, 2.0, 4.0], "y": [1.0, 2.0, 2.0, 5.0]}}
        >>> found = fb.regression("y ~ x", clients=rows).prior_predictive(key=jax.random.key(0))
        >>> dict(found["prior_predictive"]["y"].sizes)
        {'chain': 1, 'draw': 500, 'y_row': 4}
        >>> az.plot_ppc(found, group="prior")  # doctest: +SKIP
        """
        self._check_clients()
        if self._family.stratified:
            raise FormulaError(NO_TIMES)
        return prior_predictive(self.model, self.clients, self.coords, self.dims, typed_key(key), num_draws)

    def _check_clients(self) -> None:
        """Refuse what needs rows, where there are none."""
        if not self.clients:
            raise ClientDataError(
                "This regression was made of an agreement, and has no clients. Give `clients=` as well; over a network "
                "each site makes its own data by `.arguments(site, table, outcome=True)`."
            )

    def arguments(self, client: str, rows: Any, *, outcome: bool = False) -> dict[str, Any]:
        """The program's arguments of new rows, with the columns, levels, means and sds of this regression.

        Parameters
        ----------
        client
            The client's name. Where it is one of the fit's, groups within it have their numbers of the fit; a new
            client, for ``fit.adapt``, has groups of its own, which :func:`predictions` knows by
            ``where=(fit.adapt(...), rows)``.
        rows
            A table with the formula's columns.
        outcome
            Whether the table has the outcome as well, as a site's own data do. Rows that lack a value are then left
            out where ``missing`` was ``"drop"``.

        Returns
        -------
        dict
            For ``fit.predict(client, **reg.arguments(client, rows))``.

        Raises
        ------
        ClientDataError, FormulaError
            A column is missing, or has a level that was not agreed on.

        Examples
        --------
        >>> import fedbayes as fb
        >>> rows = {"a": {"x": [0.0, 1.0, 2.0, 4.0], "y": [1.0, 2.0, 2.0, 5.0]}}
        >>> reg = fb.regression("y ~ x", clients=rows)
        >>> reg.arguments("a", {"x": [1.75]})["x"]
        array([[0.]])
        """
        table = own_rows(self, client, rows) if outcome else _table(client, rows, new=True)
        # only an outcome tells of missing covariates: of rows without one they would be draws of the column's law
        imputed = self._gaps.reads if outcome else ()
        table.check_there([name for predictor in self._predictors for name in predictor.reads], imputed)
        groups = self.groups[client] if client in self.groups else groups_of(self._predictors, table)
        found: dict[str, Any] = {}
        for predictor in self._predictors:
            found |= predictor.arrays(table, groups)
        found |= self._gaps.arrays(table, None if outcome else self.clients.get(client, {}).get(COUNT))
        if self._needs_rows:
            found["rows"] = np.ones(table.num_rows)
        if outcome:
            table.check_there(self._outcome.columns)
            outcomes = self._outcome.outcome(table)
            self._family.check(outcomes)
            return found | arguments_of(outcomes, self._family)
        if self._outcome.weights is not None:
            found["weights"] = np.ones(table.num_rows)
        if self._outcome.trials is not None:
            table.check_there(self._outcome.trials.columns)
            found["trials"] = numbers_of(self._outcome.trials, table, {}).astype(np.int64)
        if self._outcome.errors is not None:
            table.check_there(self._outcome.errors.columns)
            found["errors"] = numbers_of(self._outcome.errors, table, {})
        return found

    def __repr__(self) -> str:
        formulas = self.formula if isinstance(self.formula, Mapping) else {"": self.formula}
        lines = ["Regression"]
        lines += [f"  {'formula' if not name else f'formula of {name}'}: {text}" for name, text in formulas.items()]
        lines.append(f"  family: {self.family}, link {self.link}")
        if rows := [len(client["y"]) for client in self.clients.values()]:
            lines.append(f"  clients: {len(self.clients)}, rows {min(rows):,} to {max(rows):,}, {sum(rows):,} in all")
        else:
            lines.append(
                f"  agreed on by {self.agreed.num_clients} clients with {self.agreed.columns.rows:,} rows in all"
            )
        lines.append("  priors:")
        width = max(map(len, self._written), default=0)
        for name, text, given in self._written.values():
            about = " (at mean covariates)" if self._is_centred(name) else ""
            lines.append(f"    {name:<{width}}  {_in_words(text)}{about}{' (given)' if given else ''}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def own_rows(reg: Regression, client: str, rows: Any) -> Table:
    """A site's own table, without the rows that lack a value where ``missing`` was ``"drop"``."""
    table = _table(client, rows)
    return table.without_missing(reg._reads)[0] if reg.agreed.drop else table


def _table(client: str, rows: Any, *, new: bool = False) -> Table:
    return rows if isinstance(rows, Table) else Table(client, rows, new=new)


def _in_words(prior: str) -> str:
    """A prior's text as people read it: of a half-Student-t, which NumPyro has as a folded distribution."""
    return re.sub(r"^FoldedDistribution\((.*)\)$", r"half of \1", prior.replace("dist.", ""))


def regression(
    formula: str | Mapping[str, str],
    *,
    clients: Any = None,
    family: str = "gaussian",
    priors: Mapping[str, dist.Distribution] | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    site: str = "site",
    missing: str = "refuse",
    agreed: Agreed | str | os.PathLike | None = None,
    **options: Any,
) -> Regression:
    """A regression from a formula: one client's program, its priors, and the same columns at every client.

    The grammar is that of Wilkinson and Rogers as R, formulaic and Bambi have it: ``+ - * : / ^ %in%``, ``0 +`` for no
    intercept, and ``log``, ``exp``, ``sqrt``, ``I``, ``scale``, ``center``, ``bs``, ``poly``, ``C`` and ``offset`` for
    columns that are computed. No other call is ever run. ``scale`` and ``center`` use the mean and the sd of all
    clients' rows, which clients tell as sums. ``(1 + x | site)`` are effects of the client itself, which stay with it;
    ``(1 | ward)`` those of groups within a client, whose labels stay with it, too. ``mi(x)`` is a column of numbers
    whose missing values are imputed: ``x_i ~ Normal(m, s)`` in every row, with globals ``m`` and ``s``, so that a
    missing one is a latent of the client. It is spelt as in brms, and a word of the formula and not an option because
    it says which terms have a random factor, and so goes wherever the formula goes: into agreements, to sites of a
    network, and into the program's text. ``docs/formulas.md`` has all of it.

    Parameters
    ----------
    formula
        ``"sick ~ age * sex + (1 | site)"``; after the outcome ``| trials(n)``, ``| weights(w)``, ``| se(s)`` with known
        standard errors, or ``| cens(c)`` with 1 where a time is censored. ``Surv(time, event)`` is an outcome, too. A
        mapping has formulas of further parameters, ``{"mu": "y ~ x", "sigma": "~ group"}``.
    clients
        From client name to a table of pandas or polars, or to a mapping from columns to arrays ``(n,)``; or one table
        with a column that names each row's client. Not needed where there is an agreement.
    family
        ``"gaussian"``, ``"student"``, ``"bernoulli"``, ``"binomial"``, ``"beta_binomial"``, ``"poisson"``,
        ``"negative_binomial"``, ``"zero_inflated_poisson"``, ``"zero_inflated_negative_binomial"``,
        ``"hurdle_poisson"``, ``"hurdle_negative_binomial"``, ``"gamma"``, ``"lognormal"``, ``"beta"``,
        ``"cumulative"``, ``"categorical"``, ``"weibull"``, ``"loglogistic"``, ``"piecewise_exponential"`` or ``"cox"``.
    priors
        Priors in place of the defaults, by parameter: ``{"age": dist.Normal(0.0, 0.1)}``. Printed, the regression shows
        all of them.
    levels
        Levels of columns of text, so that these need not be asked for: ``{"stage": ["I", "II", "III"]}``. The first one
        is compared with. Of a group: it crosses clients, and its effects are shared by all.
    site
        The word that stands for the client in ``(1 | site)``; of one table the column that names the client.
    missing
        ``"refuse"``, or ``"drop"``: leave out rows that lack a value which the formula reads. What ``mi(x)`` reads may
        be missing in both cases.
    agreed
        What clients have agreed on before, or the file where it was saved by ``reg.agreed.save("agreed.json")``. The
        regression is then the same one, and no rows are needed: ``reg.arguments(site, table, outcome=True)`` makes a
        site's data. ``levels``, ``site`` and ``missing`` are those of the agreement.
    **options
        Of the family: ``ends=[30, 90]``, where the pieces of ``"piecewise_exponential"`` end.

    Returns
    -------
    Regression
        ``.fit(key=...)`` fits it; ``.model``, ``.clients``, ``.coords`` and ``.dims`` are for ``fit_federated``.

    Raises
    ------
    FormulaError
        The formula can't be read, names a column that is not there or a function that is not on the list; a prior is of
        no parameter; the agreement can't be read, or is about another formula, family or prior.
    ClientDataError
        Before any work, with client, column and count: missing values, dates, text where numbers are needed, another
        kind at one client than at another, an undeclared level, an outcome outside of the family's support, columns
        that do not vary or are collinear, the same label of a group at two clients, only censored times.

    See Also
    --------
    Regression : What it returns.
    summary_table : The coefficients of its fit.
    predictions : Outcomes of new rows.
    describe : Table 1 of the clients.
    fit_federated : Fits a model by a method.

    Examples
    --------
    >>> import fedbayes as fb
    >>> north = {"age": [61, 48, 55, 70], "sex": ["f", "m", "m", "f"], "sick": [1, 0, 1, 1]}
    >>> south = {"age": [35, 52, 44, 66], "sex": ["m", "f", "m", "f"], "sick": [0, 0, 1, 1]}
    >>> reg = fb.regression("sick ~ age + sex", family="bernoulli", clients={"north": north, "south": south})
    >>> print(reg)
    Regression
      formula: sick ~ age + sex
      family: bernoulli, link logit
      clients: 2, rows 4 to 4, 8 in all
      priors:
        Intercept  Normal(0.0, 1.5) (at mean covariates)
        age        Normal(0.0, 0.0917)
        sex        Normal(0.0, 1.0).expand([1]).to_event(1)
    """
    family_, drop = family_of(family, options), _drops(missing)
    formulas = read_formulas(formula, family_)
    family_ = settled(family_, formulas)
    if agreed is None:
        if clients is None:
            raise FormulaError("A regression needs `clients=`, from whose rows it is agreed on, or `agreed=`.")
        tables = Tables(tables_of(clients, site))
        agreed = agree_on(formulas, family_, tables, site, levels or {}, drop)
    else:
        if not isinstance(agreed, Agreed | str | os.PathLike):
            raise FormulaError(f"`agreed` is a {type(agreed).__name__}; write `reg.agreed`, or the file where it is.")
        agreed = agreed if isinstance(agreed, Agreed) else Agreed.load(agreed)
        agreed.check(formulas.written, family_.name, options)
        check_declared(levels or {}, columns_read(formulas, plan_outcome(formulas.texts[""], family_), agreed.site))
        agreed.check_declared(levels or {}, site, drop)
        tables = Tables({} if clients is None else tables_of(clients, agreed.site))
    found = plan(formulas, family_, agreed)
    program = program_of(found, priors)
    given = {prior.name: prior.text for prior in program.priors.all.values() if prior.given}
    agreed.check_priors(given)
    return _regression(formula, found, program, replace(agreed, priors=given), tables)


def _drops(missing: str) -> bool:
    if missing not in ("refuse", "drop"):
        raise FormulaError(f"`missing` is {missing!r}; write 'refuse', or 'drop' to leave out rows that lack a value.")
    return missing == "drop"


def _regression(
    formula: str | Mapping[str, str], found: Plan, program: Program, agreed: Agreed, tables: Tables
) -> Regression:
    terms = tuple(block.name for predictor in found.predictors for block in predictor.design.blocks)
    if agreed.drop:
        tables, _ = tables.complete(list(found.reads))
    groups = {client: groups_of(found.predictors, table) for client, table in tables.items()}
    notes = (*agreed.notes, *single_rows(groups, sum(table.num_rows for table in tables.values()), found.outcome))
    reg = Regression(
        formula, found.family.name, found.family.link, compiled(program.text), program.text, {}, program.coords,
        program.dims, program.priors.distributions(), terms, groups, notes, agreed, found.predictors,
        found.outcome, found.family, program.priors.all, program.needs_rows, found.reads, found.gaps,
    )  # fmt: skip
    clients = {name: reg.arguments(name, table, outcome=True) for name, table in tables.items()}
    whole = replace(reg, clients=clients)
    carry(whole.model, whole.carried)
    return whole
