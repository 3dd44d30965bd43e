"""Regressions of textbooks: tables, priors of those who published a posterior, and what they published.

Numbers are written as they are printed, so that their digits say how they were rounded.
"""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist

import fedbayes as fb

FOLDER = Path(__file__).with_name("textbook_tables")
FLAT = dist.Normal(0.0, 1000.0)  # in place of a flat prior, which no program can draw from

Tables = dict[str, dict[str, np.ndarray]]


class Published(NamedTuple):
    """A parameter's posterior as it was printed.

    Attributes
    ----------
    theirs
        The parameter's name there.
    ours
        Its name in ``fit.idata``, with the coordinate of an entry, or a client's name and a coefficient: ``A: 1``.
    mean, sd
        As printed.
    effective
        The printed effective number of draws; 0 where none is printed.
    """

    theirs: str
    ours: str
    mean: str
    sd: str
    effective: int = 0


class Textbook(NamedTuple):
    """A regression, and the posterior that others published.

    Attributes
    ----------
    title
        Of its section.
    formula, family
        Of the regression here; a client is ``site``.
    theirs
        The formula there.
    tables
        Makes the clients' tables.
    priors
        Those of the publication.
    prior_words
        The same in its own words.
    source
        Where it was published, and by which program and version.
    draws
        How many draws the published numbers come from.
    published
        The numbers.
    """

    title: str
    formula: str
    family: str
    theirs: str
    tables: Callable[[], Tables]
    priors: Mapping[str, dist.Distribution]
    prior_words: str
    source: str
    draws: int
    published: tuple[Published, ...]

    def regression(self, defaults: bool = False) -> Any:
        """The regression, whose clients are the groups of the textbook, with its priors or with our defaults."""
        priors = {} if defaults else dict(self.priors)
        return fb.regression(self.formula, family=self.family, clients=self.tables(), priors=priors)


def read(name: str) -> list[dict[str, str]]:
    """Rows of a table."""
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def sleepstudy() -> Tables:
    """18 subjects, each measured on ten days."""
    days = np.arange(10.0)
    return {
        row["subject"]: {"Days": days, "Reaction": np.array([float(row[f"day{day}"]) for day in range(10)])}
        for row in read("sleepstudy")
    }


def epilepsy() -> Tables:
    """59 patients with four counts each; age and base count are standardised over all 236 rows, as R's `scale` does."""
    rows = read("epilepsy")

    def standardised(column: str) -> np.ndarray:
        values = np.repeat([float(row[column]) for row in rows], 4)
        return ((values - values.mean()) / values.std(ddof=1)).reshape(-1, 4)

    age, base = standardised("age"), standardised("base")
    return {
        f"patient {row['patient']}": {
            "count": np.array([int(row[f"count{period}"]) for period in range(1, 5)]),
            "zAge": age[number],
            "zBase": base[number],
            "Trt": np.full(4, int(row["treated"])),
        }
        for number, row in enumerate(rows)
    }


def admissions() -> Tables:
    """Six departments: women and men, admitted of applications."""
    rows = read("admissions")
    found: Tables = {}
    for department in sorted({row["department"] for row in rows}):
        own = [row for row in rows if row["department"] == department]
        admitted, rejected = (np.array([int(row[name]) for row in own]) for name in ("admitted", "rejected"))
        male = np.array([int(row["male"]) for row in own])
        found[department] = {"admit": admitted, "applications": admitted + rejected, "male": male}
    return found


def half_student(degrees: float, scale: float) -> dist.Distribution:
    """Student's law, folded at zero."""
    return dist.FoldedDistribution(dist.StudentT(degrees, 0.0, scale))


TEXTBOOKS = {
    "sleepstudy, brms": Textbook(
        title="Sleep deprivation, by brms",
        formula="Reaction ~ Days + (1 + Days | site)",
        family="gaussian",
        theirs="Reaction ~ Days + (1 + Days | Subject)",
        tables=sleepstudy,
        priors={
            "Intercept": dist.StudentT(3.0, 289.0, 59.0),
            "Days": FLAT,
            "1 + Days|site_sigma": half_student(3.0, 59.0),
            "sigma": half_student(3.0, 59.0),
        },
        prior_words=(
            "brms's defaults of that time: Student(3, 289, 59) for the intercept at the mean day, "
            "half Student(3, 0, 59) for the three sds, LKJ(1) for the correlation, and a flat one for `Days`, which is "
            "Normal(0, 1000) here."
        ),
        source=(
            "M. Clark, *Easy Bayes with rstanarm and brms*, 2018-11-11, "
            "[brms: Mixed Model](https://m-clark.github.io/easy-bayes/brms-mixed-model.html), by a release of brms 2 "
            "that the page does not name (github.com/m-clark/easy-bayes, `docs/brms-mixed-model.html` at b627e7f)."
        ),
        draws=4000,
        published=(
            Published("Intercept", "Intercept", "251.42", "7.39", 1650),
            Published("Days", "Days", "10.41", "1.67", 1233),
            Published("sd(Intercept)", "1 + Days|site_sigma[1]", "26.74", "7.04", 1635),
            Published("sd(Days)", "1 + Days|site_sigma[Days]", "6.52", "1.50", 1290),
            Published("cor(Intercept,Days)", "1 + Days|site_correlation[Days, 1]", "0.10", "0.29", 877),
            Published("sigma", "sigma", "25.89", "1.55", 3200),
        ),
    ),
    "sleepstudy, Bambi": Textbook(
        title="Sleep deprivation, by Bambi",
        formula="Reaction ~ Days + (1 + Days || site)",
        family="gaussian",
        theirs="Reaction ~ 1 + Days + (Days | Subject)",
        tables=sleepstudy,
        priors={
            "Intercept": dist.Normal(298.5079, 261.0092),
            "Days": dist.Normal(0.0, 48.8915),
            "1 + Days|site_sigma": dist.HalfNormal(np.array([261.0092, 48.8915])),
            "sigma": half_student(4.0, 56.1721),
        },
        prior_words=(
            "Bambi's defaults, as the page prints them: Normal(298.5079, 261.0092) for the intercept at the mean day, "
            "Normal(0, 48.8915) for `Days`, half-normal with scales 261.0092 and 48.8915 for the sds of the subjects' "
            "intercepts and slopes, which are not correlated, and half Student(4, 0, 56.1721) for `sigma`."
        ),
        source=(
            "[Bambi's documentation](https://bambinos.github.io/bambi/notebooks/sleepstudy.html), run on 2024-05-26 "
            "with Bambi 0.13.1.dev39 (github.com/bambinos/bambi, `notebooks/sleepstudy.html` at 06ccfff). It prints "
            "the two common effects only."
        ),
        draws=4000,
        published=(
            Published("Intercept", "Intercept", "251.617", "7.472"),
            Published("Days", "Days", "10.471", "1.708"),
        ),
    ),
    "epilepsy, brms": Textbook(
        title="Epileptic seizures, by brms",
        formula="count ~ zAge + zBase * Trt + (1 | site)",
        family="poisson",
        theirs="count ~ zAge + zBase * Trt + (1 | patient)",
        tables=epilepsy,
        priors={
            "Intercept": dist.StudentT(3.0, 1.4, 2.5),
            **{name: dist.Normal(0.0, 5.0) for name in ("zAge", "zBase", "Trt", "zBase:Trt")},
            "1|site_sigma": half_student(3.0, 2.5),
        },
        prior_words=(
            "Normal(0, 5) for the coefficients, and brms's defaults for the others: Student(3, 1.4, 2.5) for the "
            "intercept at mean covariates, half Student(3, 0, 2.5) for the sd."
        ),
        source=(
            "`fit2` of [brms's page on the data](https://paulbuerkner.com/brms/reference/epilepsy.html), by a release "
            "of brms 2 that the page does not name (github.com/paul-buerkner/brms, `reference/epilepsy.md` at 17328e4)."
        ),
        draws=4000,
        published=(
            Published("Intercept", "Intercept", "1.77", "0.12", 738),
            Published("zAge", "zAge", "0.09", "0.09", 769),
            Published("zBase", "zBase", "0.70", "0.12", 873),
            Published("Trt1", "Trt", "-0.27", "0.17", 841),
            Published("zBase:Trt1", "zBase:Trt", "0.05", "0.16", 956),
            Published("sd(Intercept)", "1|site_sigma", "0.58", "0.07", 939),
        ),
    ),
    "admissions, brms": Textbook(
        title="Admissions in Berkeley, by brms",
        formula="admit | trials(applications) ~ male + (1 | site)",
        family="binomial",
        theirs="admit | trials(applications) ~ 1 + male + (1 | dept_id)",
        tables=admissions,
        priors={
            "Intercept": dist.Normal(0.0, 10.0),
            "male": dist.Normal(0.0, 1.0),
            "1|site_sigma": dist.HalfCauchy(2.0),
        },
        prior_words=(
            "those of McElreath's *Statistical Rethinking* (2015, 13.2), Normal(0, 10) for the intercept at the mean "
            "of `male`, Normal(0, 1) for `male`, half Cauchy(2) for the sd."
        ),
        source=(
            "`b13.2` of A. S. Kurz, *Statistical Rethinking with brms, ggplot2, and the tidyverse*, chapter 13, run on "
            "2019-04-20 by a release of brms 2 that the chapter does not name "
            "(github.com/ASKurz/Statistical_Rethinking_with_brms_ggplot2_and_the_tidyverse, `_book/13.md` at 0395d95)."
        ),
        draws=12_000,
        published=(
            Published("Intercept", "Intercept", "-0.57878250", "0.64522749", 1894),
            Published("male", "male", "-0.09643949", "0.08121842", 4728),
            Published("sd(Intercept)", "1|site_sigma", "1.47518830", "0.57524043", 1814),
            Published("department 1", "A: Intercept", "0.67613683", "0.09775346"),
            Published("department 2", "B: Intercept", "0.63139265", "0.11483278"),
            Published("department 3", "C: Intercept", "-0.58206284", "0.07404136"),
            Published("department 4", "D: Intercept", "-0.61496585", "0.08624727"),
            Published("department 5", "E: Intercept", "-1.05978468", "0.09848451"),
            Published("department 6", "F: Intercept", "-2.60642640", "0.15776514"),
        ),
    ),
}
