"""The programs of `benchmarks/hierarchies.py`: everybody's program is the product of the clients'; ratios and page."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import potential_energy

from fedbayes.problem.problem import make_problem

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="these tests run away from a checkout")

NAMES = (
    *("logistic", "negative binomial", "poisson", "ordinal", "radon 17", "radon 85", "logistic 100"),
    *("slopes", "wards", "variances", "walk", "meta-analysis", "frailty", "eight schools"),
    *("2pl", "missing covariate", "measurement error", "growth"),
)
SAME = {"radon 85": "radon 17", "logistic 100": "logistic"}  # the same programs, with more clients


@pytest.fixture(scope="module")
def script(load):
    return load("hierarchies")


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def test_all_programs_are_tried(script) -> None:
    assert set(script.HIERARCHIES) == set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SAME])
def test_the_program_of_everybodys_data_is_the_product_of_the_clients(script, name: str) -> None:
    example = script.HIERARCHIES[name]
    clients = dict(list(example.clients().items())[:2])
    problem, (model, data) = make_problem(example.model, clients), example.pooled(clients)
    random, size = np.random.default_rng(5), problem.globals.size
    theta, separate, own = 0.3 * random.normal(size=size), 0.0, []
    for client_name, arrays in zip(problem.names, problem.arrays, strict=True):
        program = problem.program(client_name)
        z = 0.3 * random.normal(size=program.locals.size)
        separate += jax.jit(program.log_factor)(theta, z, arrays.arrays)
        own.append(program.locals.unravel(jnp.asarray(z)))
    together = problem.client(problem.names[0]).program.globals.unravel(jnp.asarray(theta))
    shapes = jax.eval_shape(
        lambda: {site: found["value"] for site, found in trace(seed(model, 0)).get_trace(**data).items()}
    )
    for site in own[0]:
        values = [each[site] for each in own]
        stacked = np.ndim(values[0]) < shapes[site].ndim
        together[site] = jnp.stack(values) if stacked else jnp.concatenate(values)
    # compiled as a whole: one by one each of their operations is a program
    joint = jax.jit(lambda params: -potential_energy(seed(model, 0), (), data, params))(together)
    np.testing.assert_allclose(jax.jit(problem.prior.log_density)(theta) + separate, joint, rtol=1e-10)


def test_units_of_all_clients_are_numbered_through(script) -> None:
    _, data = script.HIERARCHIES["wards"].pooled(
        {
            "a": dict(wards=2, ward=np.array([0, 1, 1]), x=np.zeros((3, 1)), y=np.zeros(3)),
            "b": dict(wards=3, ward=np.array([2, 0]), x=np.ones((2, 1)), y=np.ones(2)),
        }
    )
    assert data["wards"] == 5
    np.testing.assert_array_equal(data["ward"], [0, 1, 1, 4, 2])
    np.testing.assert_array_equal(data["client"], [0, 0, 0, 1, 1])


FIT = {"cpu": 10.0, "seconds": 9.0, "idata": {"cpu": 2.0, "seconds": 1.0}, "second": {"cpu": 1.0, "seconds": 1.0}}
NUTS = {"cpu": 6.0, "wall": 5.0, "second": {"cpu": 2.0, "wall": 2.0}}


@pytest.mark.parametrize(
    ("fit", "nuts", "expected"),
    [
        (FIT, NUTS, (2.0, 0.5)),
        (FIT | {"second": {"slow": 300.0}}, NUTS, (2.0, None)),
        ({"slow": 300.0}, NUTS, (None, None)),
        (FIT, {"slow": 300.0}, (None, None)),
    ],
)
def test_ratios_are_of_cpu_seconds_with_idata(script, fit, nuts, expected) -> None:
    assert script.ratios(fit, nuts) == expected


def test_ratios_are_of_seconds_on_the_clock_where_nothing_else_ran(script) -> None:
    assert script.ratios(FIT, NUTS, "both cores") == (2.0, 0.5)
    assert script.ratios({**FIT, "seconds": 4.0}, NUTS, "both cores") == (1.0, 0.5)


def test_rows_that_were_not_done_in_time_have_a_line(script) -> None:
    found = {
        "before": {"200": {"slow": 60.0}, "30": {"data": 0.1, "before": 0.3, "peak": 1.0, "seconds": 9.0, "cpu": 8.0}}
    }
    assert script.rows.section(found)[-3:-1] == [
        "| before | 30 | 0.10 | 0.30 | 1.00 | 9 | 8 |",
        "| before | 200 |  |  |  | over 60 |  |",
    ]
    assert script.rows.section({}) == []


def test_the_page_is_as_its_script_writes_it(script) -> None:
    results = json.loads((FOLDER / "hierarchies.json").read_text())
    assert script.markdown(results) == (FOLDER / "HIERARCHIES.md").read_text()
