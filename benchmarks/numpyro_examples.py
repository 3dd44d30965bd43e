"""NumPyro's own example programs, said anew for one client's data: what does a fit with defaults make of them?

    python benchmarks/numpyro_examples.py                   # what has no stored result yet; two hours for all
    python benchmarks/numpyro_examples.py --only gp --only ode          # these anew
    python benchmarks/numpyro_examples.py --again                       # all fits anew, against the stored NUTS
    python benchmarks/numpyro_examples.py --only gp --reference         # NUTS anew as well
    python benchmarks/numpyro_examples.py --table                       # NUMPYRO_EXAMPLES.md from what is stored

Each fit and each NUTS runs in a fresh process with a time limit; results go to ``numpyro_examples.json`` after each.
"""

from pathlib import Path

import typer
from examples import EXAMPLES
from examples.command import command
from examples.comparison import Comparison

_OPENING = """\
# NumPyro's example programs

Written by `numpyro_examples.py`: the programs of NumPyro's `examples/` and some of its tutorials, said anew for one
client's data (`examples/`), fitted by `fedbayes.fit_federated` with its defaults, and compared with NUTS on everybody's
data.

{number} programs. {summary}.
"""

COMPARISON = Comparison(Path(__file__), EXAMPLES, 180.0, _OPENING, ("program", "NumPyro's"))

if __name__ == "__main__":
    typer.run(command(COMPARISON))
