"""The server app: the loop of a fit in Flower's process for the server."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedbayes.errors import FedbayesError
from fedbayes.flower.grid import GridTransport
from fedbayes.flower.programs import agreement_of, optional, parts
from fedbayes.flower.settings import Settings

if TYPE_CHECKING:
    from fedbayes.network.transport import Transport
    from fedbayes.results.fit import FederatedFit

_LOG = logging.getLogger(__name__)
_SECONDS_A_ROUND = 1.0  # with nodes of `fedbayes start-node`; benchmarks/NETWORK.md


def server_app(
    model: Callable[..., Any] | str,
    method: Any = None,
    *,
    local: Sequence[str] = (),
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    dtype: Any = np.float64,
    report: Callable[[Any], None] | None = None,
) -> ServerApp:
    """The server app of a study, for ``[tool.flwr.app.components]`` of a Flower project.

    Parameters
    ----------
    model
        One client's NumPyro program; or, as a text, the name of a module that defines ``model`` and ``method``, and may
        define ``coords`` and ``dims``. Where it defines no ``model`` yet, but an ``agreement``
        (:class:`fedbayes.network.agreeing.study.FormulaStudy`), the sites agree on that, and ``agreed.json`` is
        written.
    method
        As for :func:`fedbayes.fit_federated`.
    local, coords, dims, dtype
        As for :func:`fedbayes.fit_federated`.
    report
        Called with the fit when that has ended and is saved.

    Returns
    -------
    ServerApp
        The app. Its settings come from the run (:class:`fedbayes.flower.settings.Settings`).

    Examples
    --------
    >>> from fedbayes.flower import server_app
    >>> app = server_app("my_study.program")
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        import jax

        from fedbayes.network.fit import fit_over
        from fedbayes.network.server.remote import Patience
        from fedbayes.network.study import Study

        settings = Settings.of(context.run_config)
        _show_progress()
        if (agreement := agreement_of(model)) is not None:
            _agree(GridTransport(grid, keys=settings.keys), agreement, settings)
            return
        program, fitted_by = parts(model, method=method)
        output = Path(settings.output)
        with _told():
            fit = fit_over(
                GridTransport(grid, keys=settings.keys),
                Study(program, fitted_by, local=local, dtype=dtype),
                key=jax.random.key(settings.seed),
                num_clients=settings.num_clients or None,
                sites=settings.names,
                join_timeout=settings.join_timeout,
                patience=Patience(
                    round_timeout=settings.round_timeout,
                    min_clients=settings.min_clients,
                    give_up_after=settings.give_up_after,
                ),
                num_rounds=settings.num_rounds or None,
                coords=optional(model, "coords", coords),
                dims=optional(model, "dims", dims),
                num_draws=settings.num_draws,
                correct=settings.correct,
                checkpoint=output / "checkpoint",
                seconds_a_round=_SECONDS_A_ROUND,
                secure_sums=settings.secure_sums,
            )
        _write(fit, output)
        _LOG.info("%s", fit)
        if report:
            report(fit)

    return app


def _agree(transport: "Transport", study: Any, settings: Settings) -> None:
    """Agree with the sites on a regression, and write what was agreed on."""
    from fedbayes.network.agreeing.server import agree_over

    with _told():
        agreed = agree_over(
            transport,
            study,
            num_clients=settings.num_clients or None,
            sites=settings.names,
            join_timeout=settings.join_timeout,
            timeout=settings.round_timeout,
            secure_sums=settings.secure_sums,
        )
    path = Path(settings.output) / "agreed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    agreed.save(path)
    _LOG.info("%d sites have agreed; what on is in '%s', for the study's project.", agreed.num_clients, path)


@contextmanager
def _told() -> Iterator[None]:
    """An error that a person can put right is said by itself, as Flower buries it in a traceback."""
    try:
        yield
    except FedbayesError as error:
        _LOG.error("The run has ended. %s", error)
        raise error.with_traceback(None) from None


def _write(fit: "FederatedFit", folder: Path) -> None:
    """The posterior and the rounds, and the rest of the fit where its method can be written to a file."""
    try:
        fit.save(folder)
    except ValueError as error:  # an option is a function
        _LOG.warning("Only posterior.nc and rounds.nc are written: %s", error)
        folder.mkdir(parents=True, exist_ok=True)
        fit.idata.to_netcdf(str(folder / "posterior.nc"))
        fit.rounds.to_netcdf(folder / "rounds.nc", engine="h5netcdf")


def _show_progress() -> None:
    """What fedbayes logs and warns of goes to the terminal of ``flwr run``."""
    logging.captureWarnings(capture=True)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in ("fedbayes", "py.warnings"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        if not logger.handlers:
            logger.addHandler(handler)
