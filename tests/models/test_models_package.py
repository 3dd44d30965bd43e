import subprocess
import sys
from importlib.resources import files

import jax
import numpy as np
import pytest

from fedbayes.models import _random, eight_schools, gp, heart_disease, hierarchical_linear, linear, penalised

MODULES = (heart_disease, eight_schools, linear, hierarchical_linear, penalised)


def test_import_makes_no_device_array_and_reads_no_data():
    code = (
        "import builtins, sys, jax, numpyro, fedbayes\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open' else None)\n"
        "import fedbayes.models\n"
        "assert not jax.live_arrays(), jax.live_arrays()\n"
        "assert not [path for path in opened if path.endswith('.csv')], opened\n"
        "fedbayes.models.heart_disease.clients()\n"
        "assert sum(path.endswith('.csv') for path in opened) == 4, opened\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert result.returncode == 0, result.stderr


def test_the_data_carry_their_licence():
    text = (files("fedbayes.models") / "data" / "heart" / "LICENSE.md").read_text()
    for needed in ("CC BY 4.0", "10.24432/C52P4X", "Janosi", "Steinbrunn", "Pfisterer", "Detrano", "## Changes"):
        assert needed in text


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_simulated_clients_are_named_numpy_arrays(module):
    clients, truth = module.simulate(jax.random.key(0))
    assert all(isinstance(name, str) for name in clients)
    for array in [*truth.values(), *(array for client in clients.values() for array in client.values())]:
        assert isinstance(array, np.ndarray)
        assert np.isfinite(array).all()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
@pytest.mark.parametrize("key", [0, np.array([0, 0], np.uint32)], ids=["int", "numpy"])
def test_simulate_refuses_what_is_no_key(module, key):
    with pytest.raises(TypeError, match=r"`key` is .*; write a typed JAX key, such as `jax\.random\.key\(0\)`"):
        module.simulate(key)


PENALTIES = (penalised.ridge, penalised.lasso, penalised.elastic_net, penalised.horseshoe)


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ((heart_disease.model, eight_schools.model, linear.model, hierarchical_linear.model), "By a formula it is"),
        ((gp.model, *PENALTIES), "No formula says it: "),
    ],
    ids=["equal", "none"],
)
def test_each_program_says_whether_a_formula_is_its_equal(programs, words):
    said = {program.__qualname__: " ".join((program.__doc__ or "").split()) for program in programs}
    assert [name for name, text in said.items() if words not in text] == []


def test_generators_take_keys_of_both_kinds():
    one, other = (_random.generator(kind(3), 1).random() for kind in (jax.random.key, jax.random.PRNGKey))
    assert one == other


def test_generators_differ_by_key_and_path():
    draws = {
        (seed, path): _random.generator(jax.random.key(seed), *path).random()
        for seed in (0, 1)
        for path in ((), (0,), (1,), (0, 1), (1, 0), (1, 1))
    }
    assert len(set(draws.values())) == len(draws)
    assert _random.generator(jax.random.key(1), 1, 1).random() == draws[1, (1, 1)]
