"""The adapter is optional: fedbayes does not need Flower, and says so where it would."""

import subprocess
import sys

HIDE = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "flwr" else find(name, *rest)
"""


def python(program, cwd):
    return subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True)


def test_without_flower_the_error_says_what_to_install(tmp_path):
    done = python(HIDE + "import fedbayes\nfrom fedbayes.flower import client_app", tmp_path)
    assert "fedbayes.flower needs Flower: pip install 'fedbayes[flower]'" in done.stderr.splitlines()[-1]
    assert done.returncode == 1


def test_fedbayes_and_its_adapter_load_flower_when_it_is_used_first(tmp_path):
    program = "import sys, fedbayes, fedbayes.flower; print('flwr' in sys.modules); fedbayes.flower.client_app"
    done = python(program + "; print('flwr' in sys.modules, 'jax' in sys.modules)", tmp_path)
    assert done.stdout.split() == ["False", "True", "False"], done.stderr


def test_an_unknown_name_is_an_attribute_error(tmp_path):
    done = python("import fedbayes.flower; fedbayes.flower.nothing", tmp_path)
    assert "module 'fedbayes.flower' has no attribute 'nothing'" in done.stderr
