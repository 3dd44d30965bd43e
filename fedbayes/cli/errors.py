"""What the user can put right, said by the commands of ``fedbayes`` without a traceback."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

BAD_INPUT, NOT_USABLE = 2, 3  # exit codes


@contextmanager
def plain_errors(bad_input: int = 1) -> Iterator[None]:
    """What the user can put right is said in words, without a traceback.

    Parameters
    ----------
    bad_input
        The exit code of bad input; of a run that failed for another reason it is 1.
    """
    import logging

    from fedbayes.errors import FedbayesError, FederatedError

    logging.getLogger("fedbayes").addHandler(logging.NullHandler())  # it is said below, and only once
    try:
        yield
    except ModuleNotFoundError as error:
        _fail(
            error if error.name == "flwr" else ModuleNotFoundError(f"{error}: install it in this environment"),
            bad_input,
        )
    except FederatedError as error:
        _fail(error)
    except (FedbayesError, ImportError, OSError) as error:
        # A site's own no is worded for the server; here its owner reads, who may see the cause.
        cause = error.__cause__ if type(error).__name__ == "Refused" else None
        _fail(cause or error, bad_input)


@contextmanager
def quiet() -> Iterator[None]:
    """Without ArviZ's announcement of its next version."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
        yield


@contextmanager
def told_plainly(kind: type[Warning]) -> Iterator[None]:
    """Warnings of this kind are sentences for the user, without the line of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", kind)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, kind):
                typer.secho(str(message), fg="yellow", err=True)
            else:
                others(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _fail(error: BaseException, code: int = 1) -> None:
    typer.secho(str(error) or type(error).__name__, fg="red", err=True)
    raise typer.Exit(code) from None
