"""``fit_over``: the server's side of a fit, over any transport."""

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedbayes.errors import FederatedError
from fedbayes.fit import check_arguments, concluded, updates_after
from fedbayes.network.charter import Hello, Joined
from fedbayes.network.conclusion import telling
from fedbayes.network.fixed_point import FEWEST_SITES
from fedbayes.network.server.described import Described, described_problem, seats
from fedbayes.network.server.joining import all_joined, enrolled
from fedbayes.network.server.register import Register
from fedbayes.network.server.remote import Patience, Remote
from fedbayes.network.server.secure import NoSum
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
_MOST_PUT_OUT = 2  # sites of a fit: where more are of no use, the fault is rather the study's or the server's


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
        belong to it are in a file beside it. Where sites were put out, ``.put-out.json`` beside it names them, the new
        run's state is in another file, and the fit goes on with that; without ``.put-out.json``, with all sites.
    progress
        ``True``: lines in the log.
    seconds_a_round
        Seconds that the transport needs per round, used to estimate the run time in advance.
    secure_sums
        Whether the sites hide their terms of sums from the server (:mod:`fedbayes.network.client.masks`), wherever it
        needs the sum over all of them alone, and there are at least three. Such a round needs every site, whatever
        ``patience`` says. A site whose answers can't be used, or that adds nothing for many rounds, is put out, and a
        new run begins without it, twice at most, and with no fewer than three sites. In that sites take part whose
        owners let them add up with fewer (``fewest`` of their policies); noisy rounds are not begun anew, as they would
        be charged again. Other messages leave a site only if its owner lets single ones leave.

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
        two nodes claim one site; one site keeps secure sums from coming out, and the others don't add up without it.
    """
    key = typed_key(key)
    check_arguments(num_rounds, participation, num_draws)
    _check_who(num_clients, sites)
    patience = patience or Patience()
    shown = Presentation(num_draws, dict(coords or {}), dict(dims or {}), tuple(study.local), bool(correct))
    told = Terminal(seconds_a_round) if progress is True else progress or Silent()
    asked = _Asked(
        key, shown, join_timeout, patience, num_rounds, participation, num_draws, checkpoint, told, secure_sums
    )
    with computing():
        register = Register(transport, study, min(patience.round_timeout, join_timeout))
        try:
            fitted, executor = _fitted(register, asked, num_clients or len(sites), sites)
        finally:
            told.close()
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


class _Asked(NamedTuple):
    """What the runs of a fit have in common, as :func:`fit_over` was given it."""

    key: Array
    shown: Presentation
    join_timeout: float
    patience: Patience
    num_rounds: int | None
    participation: Participation
    num_draws: int
    checkpoint: str | os.PathLike | None
    progress: Progress
    secure_sums: bool


def _fitted(register: Register, asked: _Asked, num: int, sites: Sequence[str]) -> tuple[Fitted, Remote]:
    """What the rounds have found; where a site keeps the others' sums from coming out, those of a new run without it.

    It begins from the start. Within a run sites refuse sums with a site less: less than the others', such a sum is that
    site's term. In a new run they add up with fewer where their owners have said so.
    """
    left = _Left(asked.checkpoint, register.study.digest)
    told = left.read(num, sites)
    while True:
        try:
            return _one_run(register, asked, len(left.others) or num, left.others or sites, left)
        except FederatedError as error:
            said = f"{told} It has ended as well. {error}" if told else str(error)
            if not isinstance(error, NoSum) or not _may_go_on(error, left, register.study):
                if not told:
                    raise
                raise FederatedError(said) from error
            told = f"{said} The server has begun one, over {error.others}.{left.advice()}"
            log.warning("%s", told)
            left.leave(error)
        register.forget(left.put_out)


def _may_go_on(error: NoSum, left: "_Left", study: Study) -> bool:
    """Whether a run is begun without the sites that have ended one.

    Two others would have to send single messages, which the server does not ask for by itself where sums were hidden;
    noisy rounds would be charged to the sites' budgets once more.
    """
    few_are_bad = 0 < len(error.sites) <= _MOST_PUT_OUT - len(left.put_out)
    return few_are_bad and len(error.others) >= FEWEST_SITES and not study.configured.is_private


def _one_run(register: Register, asked: _Asked, num: int, sites: Sequence[str], left: "_Left") -> tuple[Fitted, Remote]:
    """What the rounds of a run have found, and the executor that asks its sites."""
    study, checkpoint = register.study, left.checkpoint()
    problem, executor = joined(
        register, num, sites, asked.join_timeout, asked.patience, checkpoint, secure_sums=asked.secure_sums
    )
    check_names(problem, asked.shown)
    configured, roster = study.configured, problem.roster
    programs = programs_for(configured, roster, problem.programs, updates_after(configured, roster))
    for warning in programs.warnings:
        warnings.warn(warning, stacklevel=4)
    saved = None
    if checkpoint is not None:
        text = f"{problem.description()}, study {study.digest[:16]}"
        saved = Checkpoint(checkpoint, fingerprint(text, configured, jax.random.key_data(asked.key)))
    executor.connect(programs, problem, asked.key)
    run = Run(programs, roster, executor, asked.key, asked.participation)
    current = run.run(asked.num_rounds, asked.progress, saved, asked.num_draws)
    carried = carried_by(study.model)
    fitted = fitted_by(configured, problem, current, programs, executor, asked.key, asked.shown, carried=carried)
    return replace(fitted, put_out=dict(left.put_out)), executor


class _Left:
    """The sites that a fit goes on without, in a file beside its checkpoint: it may be started again.

    Parameters
    ----------
    asked
        The checkpoint of the run with all sites; it stays as it is, for when these are set right.
    study
        Its digest.

    Attributes
    ----------
    put_out
        These sites, each with why.
    others
        Those of the new run; empty before one.
    run
        The name of the run that ended last.
    """

    def __init__(self, asked: str | os.PathLike | None, study: str) -> None:
        self._asked, self._study = asked, study
        self._file = None if asked is None else Path(f"{os.fspath(asked)}.put-out.json")
        self.put_out: dict[str, str] = {}
        self.others: list[str] = []
        self.run = ""

    def read(self, num: int, sites: Sequence[str]) -> str:
        """Go on with the newest run of an earlier start, if that had begun one: what has happened then, in sentences.

        Raises
        ------
        FederatedError
            That was another study's, or of other sites than are asked for now.
        """
        if self._file is None or not self._file.exists():
            return ""
        told = json.loads(self._file.read_text())
        if told["study"] != self._study:
            raise FederatedError(f"'{self._file}' is of another study. Remove it, or name another checkpoint.")
        _check_same_sites([*told["others"], *told["put_out"]], num, sites, self._asked)
        self.put_out, self.others, self.run = dict(told["put_out"]), list(told["others"]), str(told["run"])
        said = (
            f"The sites {list(self.put_out)} were put out, and the server has begun a new run, over {self.others}."
            f"{self.advice()}"
        )
        log.warning("%s", said)
        return said

    def leave(self, error: NoSum) -> None:
        """Go on without the sites that have ended a run."""
        self.put_out |= error.sites
        self.others, self.run = list(error.others), error.run
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            told = {"study": self._study, "put_out": self.put_out, "others": self.others, "run": self.run}
            replace_file(self._file, json.dumps(told).encode())

    def checkpoint(self) -> str | os.PathLike | None:
        """The file of a run: where sites were put out, one that belongs to the run which ended, and to these sites."""
        if self._asked is None or not self.put_out:
            return self._asked
        which = json.dumps([self.run, sorted(self.put_out), sorted(self.others)])
        digest = hashlib.sha256(which.encode()).hexdigest()  # a site's name may be no file's
        return f"{os.fspath(self._asked)}.without-{digest[:8]}"

    def advice(self) -> str:
        """How to begin with all sites again, a sentence after others."""
        if self._file is None:
            return ""
        return f" Started again, the fit goes on with that one; remove '{self._file}', and it does with all sites."


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
