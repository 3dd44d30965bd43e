"""``fit_over``: the server's side of a fit, over any transport."""

import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from fedbayes.errors import FederatedError
from fedbayes.fit import check_arguments, concluded, updates_after
from fedbayes.network.charter import Hello, Joined
from fedbayes.network.conclusion import telling
from fedbayes.network.server.described import Described, described_problem, seats
from fedbayes.network.server.joining import all_joined, enrolled
from fedbayes.network.server.register import Register
from fedbayes.network.server.remote import Patience, Remote
from fedbayes.network.server.terminal import Terminal
from fedbayes.network.study import Study
from fedbayes.network.transport import Transport
from fedbayes.results.fit import FederatedFit
from fedbayes.results.fitted import Fitted, fitted_by, without_check
from fedbayes.results.posterior import idata
from fedbayes.results.presented import Presentation, check_names
from fedbayes.results.saved.regression import carried_by
from fedbayes.rounds.checkpoint import Checkpoint, fingerprint
from fedbayes.rounds.loop import Participation, Run
from fedbayes.rounds.programs import programs_for
from fedbayes.rounds.progress import Progress, Silent
from fedbayes.runtime.files import replace_file
from fedbayes.runtime.keys import typed_key
from fedbayes.runtime.precision import computing

log = logging.getLogger(__name__)


def fit_over(
    transport: Transport,
    study: Study,
    *,
    key: Array,
    num_clients: int | None = None,
    sites: Sequence[str] = (),
    join_timeout: float = 600.0,
    patience: Patience | None = None,
    num_rounds: int | None = None,
    participation: Participation = 1.0,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    num_draws: int = 1000,
    correct: bool = True,
    checkpoint: str | os.PathLike | None = None,
    progress: Progress | bool = True,
    seconds_a_round: float = 0.0,
    secure_sums: bool = True,
) -> FederatedFit:
    """Fit one model to the data of clients that are other processes.

    Parameters
    ----------
    transport
        To the clients' nodes.
    study
        The model and the method; the clients have the same.
    key, num_rounds, participation, coords, dims, num_draws, correct
        As for :func:`fedbayes.fit_federated`.
    num_clients
        The run begins when so many holders of data have joined.
    sites
        Or when these have: their names, in the order that they shall have.
    join_timeout
        Seconds to wait for them.
    patience
        How long a round waits, and for how many clients.
    checkpoint
        File that holds the state after each round; the same run, started again, resumes from it. The clients that
        belong to it are in a file beside it.
    progress
        ``True``: lines in the log.
    seconds_a_round
        Seconds that the transport needs per round, used to estimate the run time in advance.
    secure_sums
        Whether the sites hide their terms of sums from the server (:mod:`fedbayes.network.client.masks`), wherever it
        needs the sum over all of them alone, and there are at least three. Such a round needs every site, whatever
        ``patience`` says. Other messages leave a site only if its owner lets single ones leave.

    Returns
    -------
    FederatedFit
        What is about a client's own rows or latents is refused: it is computed at the client.

    Raises
    ------
    ClientDataError, ModelError
        Clients have different arguments, or the model can't be split.
    FederatedError
        Too few clients have joined, or have answered; one that is there takes no part, and there are not enough others;
        two nodes claim one site.
    """
    key = typed_key(key)
    check_arguments(num_rounds, participation, num_draws)
    _check_who(num_clients, sites)
    patience = patience or Patience()
    shown = Presentation(num_draws, dict(coords or {}), dict(dims or {}), tuple(study.local), bool(correct))
    told = Terminal(seconds_a_round) if progress is True else progress or Silent()
    with computing():
        register = Register(transport, study, min(patience.round_timeout, join_timeout))
        wanted = num_clients or len(sites)
        problem, executor = joined(register, wanted, sites, join_timeout, patience, checkpoint, secure_sums=secure_sums)
        check_names(problem, shown)
        configured, roster = study.configured, problem.roster
        programs = programs_for(configured, roster, problem.programs, updates_after(configured, roster))
        for warning in programs.warnings:
            warnings.warn(warning, stacklevel=2)
        saved = None
        if checkpoint is not None:
            text = f"{problem.description()}, study {study.digest[:16]}"
            saved = Checkpoint(checkpoint, fingerprint(text, configured, jax.random.key_data(key)))
        executor.connect(programs, problem, key)
        run = Run(programs, roster, executor, key, participation)
        try:
            current = run.run(num_rounds, told, saved, num_draws)
        finally:
            told.close()
    carried = carried_by(study.model)
    fitted = fitted_by(configured, problem, current, programs, executor, key, shown, carried=carried)
    log.info(
        "The rounds are over. The sites are asked for what the posterior needs beside them, and compile once more, "
        "which takes about a minute."
    )
    try:
        idata(fitted)  # asks the clients, while they are there
    except FederatedError as error:
        log.warning("The posterior is not checked, and has no log-likelihoods of those who are away: %s", error)
        executor.lenient = True
        fitted = replace(fitted, shown=shown._replace(correct=False), answers={})
        fitted = _with_idata(fitted)
    except Exception as error:
        fitted = without_check(fitted, error)
    with computing():
        fitted = replace(fitted, agreement=executor.conclude(telling(fitted)))
    return concluded(fitted, stacklevel=3)


def _with_idata(fitted: Fitted) -> Fitted:
    """The fit with its posterior; without what the clients would have added where they can't be asked."""
    try:
        idata(fitted)
    except Exception as error:
        return without_check(fitted, error)
    return fitted


def _check_who(num_clients: int | None, sites: Sequence[str]) -> None:
    """Raises ``ValueError`` where it is not clear with whom the run begins."""
    if (num_clients is None) == (not sites):
        raise ValueError("Say when the run begins: write either `num_clients=3`, or `sites=['north', 'south']`.")
    if num_clients is not None and num_clients < 1:
        raise ValueError(f"`num_clients` is {num_clients}; a run needs at least one client.")
    if isinstance(sites, str):
        raise ValueError(f"`sites` is the text {sites!r}; write a list of names, `sites=[{sites!r}]`.")
    if twice := sorted({name for name in sites if list(sites).count(name) > 1}):
        raise ValueError(f"`sites` names {twice} more than once; each holder of data takes part once.")


def joined(
    register: Register,
    num: int,
    sites: Sequence[str] = (),
    timeout: float = 600.0,
    patience: Patience | None = None,
    checkpoint: str | os.PathLike | None = None,
    *,
    secure_sums: bool = True,
) -> tuple[Described, Remote]:
    """The problem as the clients that have joined tell of it, and the executor that asks them.

    Parameters
    ----------
    register
        Of the nodes.
    num, sites, timeout
        Number of clients to wait for, or their names, and for how many seconds.
    patience, checkpoint, secure_sums
        As for :func:`fit_over`.
    """
    study, remembered = register.study, _Remembered(checkpoint)
    hellos = remembered.read(register)
    if hellos:
        _check_same_sites([hello.site for hello in hellos], num, sites, checkpoint)
    else:
        hellos = enrolled(register, num, sites, timeout)
    places = seats(hellos, np.dtype(study.dtype))
    found = remembered.joined or all_joined(register, study, hellos, places, timeout)
    remembered.write(hellos, found, register.keys)
    problem = described_problem(study, hellos, places, found)
    options = {"resumable": checkpoint is not None, "secure_sums": secure_sums}
    return problem, Remote(register, tuple(places), patience or Patience(), **options)


def _check_same_sites(known: Sequence[str], num: int, sites: Sequence[str], checkpoint: Any) -> None:
    """A run that is resumed has its sites; who asks for others must not get the answer of these."""
    if len(known) != num or (sites and set(sites) != set(known)):
        wanted = list(sites) if sites else f"{num} sites"
        raise FederatedError(
            f"The run of which '{checkpoint}' holds the state has the sites {list(known)}, and {wanted} are asked for "
            "now. Sites can't enter or leave a run that has begun: ask for the same ones to go on with it, or begin a "
            "new run with another checkpoint (in a Flower project, another `output`)."
        )


class _Remembered:
    """The clients of a run, beside its checkpoint: some may be away when it is resumed."""

    def __init__(self, checkpoint: str | os.PathLike | None) -> None:
        self._file = None if checkpoint is None else Path(f"{checkpoint}.sites.json")
        self._resumes = checkpoint is not None and Path(checkpoint).exists()
        self.joined: list[Joined] = []

    def read(self, register: Register) -> list[Hello]:
        """The clients of a run that is resumed, who alone take part."""
        if self._file is None or not self._resumes or not self._file.exists():
            return []
        told = json.loads(self._file.read_text())
        hellos = [Hello.read(each) for each in told["hellos"]]
        self.joined = [Joined.read(each) for each in told["joined"]]
        register.hellos, register.closed = {hello.site: hello for hello in hellos}, True
        register.keys = dict(told["keys"])
        return hellos

    def write(self, hellos: Sequence[Hello], joined: Sequence[Joined], keys: Mapping[str, str]) -> None:
        """Keep them for the next start."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            told: dict[str, Any] = {"hellos": [hello.written() for hello in hellos], "keys": dict(keys)}
            replace_file(self._file, json.dumps({**told, "joined": [asdict(each) for each in joined]}).encode())
