"""The command line of a script that compares a set of programs with NUTS."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from examples.comparison import Comparison


def command(comparison: Comparison) -> Callable[..., None]:
    """What a script hands to ``typer.run``."""

    def main(
        only: Annotated[list[str], typer.Option(help="Programs to run anew.")] = [],  # noqa: B006
        again: Annotated[bool, typer.Option("--again", help="Run all fits anew.")] = False,
        reference: Annotated[bool, typer.Option("--reference", help="Run NUTS anew, too.")] = False,
        table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
        seconds: Annotated[
            float, typer.Option(help="Limit of a fit, and of NUTS, in CPU seconds.")
        ] = comparison.seconds,
        part: Annotated[str, typer.Option("--child", hidden=True)] = "",
        output: Annotated[Path, typer.Option(hidden=True)] = Path(),
    ) -> None:
        """Run the programs, store the results after each, write the page."""
        if part:
            comparison.child(part, only[0], output, seconds)
            return
        if unknown := [name for name in only if name not in comparison.programs]:
            raise typer.BadParameter(f"{unknown}: the programs are {list(comparison.programs)}")
        names = () if table else only or list(comparison.programs)
        comparison.run(names, again or bool(only), reference, seconds)

    return main
