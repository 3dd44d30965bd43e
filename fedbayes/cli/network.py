"""The commands of ``fedbayes`` for fits over a network; they need the extra ``flower``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbayes.cli.errors import plain_errors

if TYPE_CHECKING:
    import pandas as pd

    from fedbayes.formula.reading.own import OwnRows
    from fedbayes.formula.regression import Regression
    from fedbayes.network.client.vault import Vault
    from fedbayes.network.site import Site

NodeConfig = Annotated[
    str, typer.Option(help="The node's configuration, the same text as for `flower-supernode --node-config`.")
]


def new(folder: Annotated[Path, typer.Argument(help="A folder that is empty or not there yet.")]) -> None:
    """Write a project for a fit over a network: the heart study of four hospitals, to run and then to edit."""
    with plain_errors():
        from fedbayes.flower.project import write_project

        written = write_project(folder)
    typer.echo(
        f"{len(written)} files are in {folder}. The study is {folder / 'app' / 'study.py'}; begin with README.md."
    )


def client_posterior(
    config: NodeConfig,
    project: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The project's folder, as it was in the run.")
    ] = Path(),
    output: Annotated[Path | None, typer.Option(dir_okay=False, help="A NetCDF file; by default SITE.nc.")] = None,
) -> None:
    """At a site: write its own posterior after its last run, its local latents and the globals, for ArviZ.

    It is computed from the site's data and from what the site has kept; nothing is sent.
    """
    with plain_errors():
        from fedbayes.flower.sites import open_site, read_config
        from fedbayes.network.conclusion import client_posterior as own_posterior
        from fedbayes.runtime.compiling import cache_programs

        cache_programs()
        settings = read_config(config)
        if output is not None:
            _check_output(output, {"the site's data": _data_of(settings)})
        site = open_site(project, settings)
        idata = own_posterior(site)
        path = output or Path(f"{site.name}.nc")
        _begin(path)
        idata.to_netcdf(str(path))
    _tell(site, idata, path)


def predict(
    data: Annotated[
        Path,
        typer.Argument(
            help="Rows to predict, CSV or Parquet, with the columns on the right of the formula; of new outcomes with "
            "trials or standard errors, too."
        ),
    ],
    config: NodeConfig,
    project: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The project's folder, as it was in the run.")
    ] = Path(),
    output: Annotated[Path, typer.Option(dir_okay=False, help="A CSV file; one that is there is replaced.")] = Path(
        "predictions.csv"
    ),
    own: Annotated[
        Path | None,
        typer.Option(help="The site's table that was fitted; needed where the formula has groups within the site."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="`response` for expected outcomes, or `link`, which `cox` needs.")
    ] = "response",
    level: Annotated[float, typer.Option(min=0.01, max=0.99, help="Probability of the intervals.")] = 0.9,
    new_groups: Annotated[
        bool, typer.Option("--new-groups", help="Draw the effects of groups within the site that were not fitted.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of new outcomes, and of effects of new groups.")] = 0,
    encoding: Annotated[str, typer.Option(help="Of CSV files.")] = "utf-8",
) -> None:
    """At a site: predict new rows there by a regression, with the site's own effects, after its last run.

    It is computed from the site's data and from what the site has kept; nothing is sent.
    """
    with plain_errors():
        import jax

        from fedbayes.cli.files import read_table
        from fedbayes.flower.sites import open_site, read_config
        from fedbayes.formula.reading.own import own_predictions
        from fedbayes.network.conclusion import client_posterior as own_posterior
        from fedbayes.runtime.compiling import cache_programs

        cache_programs()
        settings = read_config(config)
        inputs = {"the rows to predict": data, "`--own`": own, "the site's data": _data_of(settings)}
        _check_output(output, inputs)
        site = open_site(project, settings)
        reg, rows = _regression_of(site), read_table(data, encoding)
        mine = None if own is None else read_table(own, encoding)
        found = own_predictions(
            reg,
            site.name,
            own_posterior(site)["posterior"],
            rows,
            fitted=site.read_data(),
            own=mine,
            scale=scale,
            level=level,
            new_groups=new_groups,
            key=jax.random.key(seed),
        )
        _write_predictions(found, output)


def _data_of(settings: Mapping[str, Any]) -> Path | None:
    """The file of a site's data, where its configuration names one."""
    return Path(str(settings["data-path"])) if "data-path" in settings else None


def _check_output(output: Path, inputs: Mapping[str, Path | None]) -> None:
    """Refuse to replace what is read.

    Raises
    ------
    ClientDataError
        The output is one of these files.
    """
    from fedbayes.errors import ClientDataError

    for what, path in inputs.items():
        if path is not None and path.exists() and output.exists() and output.samefile(path):
            raise ClientDataError(f"`--output {output}` is the file of {what}. Name another file.")


def _write_predictions(found: "OwnRows", output: Path) -> None:
    """Print the first rows, and write all of them to a file for its owner alone: they tell of the site's own rows."""
    import pandas as pd

    from fedbayes.runtime.files import replace_private_file

    tables: dict[str, list[pd.DataFrame]] = {}
    for expected, new in found.parts():
        for each in filter(None, (expected, new)):
            tables.setdefault(f"{each.title}, {each.level:.0%} intervals", []).append(each.to_pandas())
    whole = {title: pd.concat(parts, ignore_index=True) for title, parts in tables.items()}
    expected_table, *others = whole.values()
    for table in others:
        numbers = table.drop(columns="row").add_prefix("new_")
        expected_table = pd.concat([expected_table, numbers], axis=1)
    output.parent.mkdir(parents=True, exist_ok=True)
    replace_private_file(output, expected_table.to_csv(index=False).encode())
    for title, table in whole.items():
        typer.echo("\n".join([title, *_first_lines(table), ""]))
    if found.only_expected:
        typer.echo(found.only_expected)
    typer.echo(f"All numbers are in {output}; row 1 is the first one below the header of the file that was read.")


def _first_lines(table: "pd.DataFrame", most: int = 40) -> list[str]:
    """The first lines of a table, and how many others there are."""
    from fedbayes.owner.text import aligned, estimate_cells

    cells = [estimate_cells(line, is_ratio=False) for line in table.head(most).to_dict("records")]
    more = [f"  ... and {len(table) - most:,} more"] if len(table) > most else []
    return [*(f"  {line}" for line in aligned([tuple(table.columns), *cells])), *more]


def _regression_of(site: "Site") -> "Regression":
    """The regression whose program is a study's model.

    Raises
    ------
    FormulaError
        It is none.
    """
    from fedbayes.errors import FormulaError
    from fedbayes.results.saved.regression import carried_by

    carried = carried_by(getattr(site.study, "model", None))  # an agreement has none yet
    if carried is None:
        raise FormulaError(
            "The study's model is no regression by a formula, `model = reg.model`. `fedbayes client-posterior` writes "
            "the site's draws of any model, for predictions by NumPyro's `Predictive`."
        )
    found: Regression = carried.whole
    return found


def _begin(path: Path) -> None:
    """An empty file for its owner alone: what is written into it tells of the site's own rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)


def disclosure(
    config: NodeConfig,
    project: Annotated[Path, typer.Option(exists=True, file_okay=False, help="The project's folder.")] = Path(),
) -> None:
    """At a site: what its owner's disclosure rules find in its data, for a study that nobody has run yet.

    Nothing is sent. It ends with status 1 where the site would not take part.
    """
    with plain_errors():
        from fedbayes.flower.sites import load_site, read_config
        from fedbayes.network.client.policy import read_policy

        settings = read_config(config)
        policy = read_policy(settings)
        found = load_site(project, settings).disclosure()
    typer.echo(repr(found))
    there = "" if policy.path.exists() else ", which is not there: the limits are the defaults"
    typer.echo(f"  policy: {policy.path}{there}")
    if found.refused:
        raise typer.Exit(1)


def approve(
    config: NodeConfig,
    project: Annotated[Path, typer.Option(exists=True, file_okay=False, help="The project's folder.")] = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Approve without being asked.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Fit three copies of the site, to see what leaves it.")] = True,
) -> None:
    """At a site: look at a study, at what it would send, and at what the rules find; then let it run, or not.

    What is approved is the code in this folder. A run whose code differs in a letter is refused by the site.
    """
    with plain_errors():
        from fedbayes.flower.approval import Approvals, code_digest
        from fedbayes.flower.sites import load_site, modules_of, read_config
        from fedbayes.network.client.naming import site_folder
        from fedbayes.runtime.compiling import cache_programs

        cache_programs()
        settings = read_config(config)
        site = load_site(project, settings)
        _show_study(site)
        typer.echo(repr(site.disclosure()))
        if dry_run:
            _show_messages(site)
        approvals, digest = Approvals(site_folder(settings)), code_digest(modules_of(project))
    typer.echo(f"The code in '{project}' has the digest {digest[:12]}.")
    if when := approvals.when(digest):
        typer.echo(f"It was approved at {when}, UTC.")
    elif yes or typer.confirm(f"May it run on the data of site {site.name}?"):
        approvals.add(digest)
        typer.echo(f"It may run on the data of site {site.name} from now on.")
    else:
        typer.echo("It may not.")
        raise typer.Exit(1)


def _show_study(site: "Site") -> None:
    """Model and method."""
    for part, text in site.study.description.items():
        lines = text.splitlines()
        typer.echo(f"{part}: {text}" if len(lines) == 1 else f"{part}:\n" + "\n".join(f"    {line}" for line in lines))
    configured = getattr(site.study, "configured", None)  # an agreement has no method
    if configured is not None and configured.takes_local_steps:
        typer.echo(
            "This method may take several local steps in a round, or the server draws its sites. A server that lies "
            "about the size of the steps, or about who was drawn, can find a single site's answer from the sums. Write "
            "`local_steps = false` under [answers] of the policy to refuse such methods."
        )


def _show_messages(site: "Site") -> None:
    """What would leave, by a dry run."""
    from fedbayes.flower.dry_run import dry_run
    from fedbayes.owner.text import aligned

    typer.echo("A dry run of three copies of this site, in this process; it may take a minute.")
    head = ("request", "update", "messages", "numbers", "kB", "form")
    rows = [
        (each.kind, each.update, str(each.messages), f"{each.numbers:,}", f"{each.kilobytes:.1f}", each.form)
        for each in dry_run(site)
    ]
    typer.echo("\n".join(aligned([head, *rows])))


def keys(
    config: NodeConfig,
    trust: Annotated[
        list[str] | None, typer.Option(help="NAME=FINGERPRINT of a site to add up with; may be given several times.")
    ] = None,
    forget: Annotated[
        list[str] | None, typer.Option(help="NAME of a site to add up with no more; may be given several times.")
    ] = None,
) -> None:
    """At a site: the fingerprint of its key for secure sums, and of those of the sites that it knows.

    A site's owner compares them with what the other owners see, by another way than through the server.
    """
    with plain_errors():
        from fedbayes.flower.sites import read_config
        from fedbayes.network.client.masks import fingerprint
        from fedbayes.network.client.naming import site_folder, site_name
        from fedbayes.network.client.partners import known_partners, own_key
        from fedbayes.network.client.policy import read_policy
        from fedbayes.network.client.vault import Vault
        from fedbayes.owner.text import aligned

        settings = read_config(config)
        name, vault, policy = site_name(settings), Vault(site_folder(settings)), read_policy(settings)
        vault.claim(name)
        if not (public := own_key(vault)):
            raise ModuleNotFoundError("No module named 'cryptography', which secure sums need")
        if trust or forget:
            _change_known(vault, trust or [], forget or [], has_partners=policy.sums.partners is not None)
    whence = "seen first through the server, or trusted since" if policy.sums.partners is None else "in the policy"
    known = sorted(known_partners(vault, policy.sums).items())
    rows = [(name, fingerprint(public), "this site"), *((ascii(other)[1:-1], key, whence) for other, key in known)]
    typer.echo("\n".join(aligned([("site", "key for secure sums", ""), *rows])))


def check_node(
    site: Annotated[str, typer.Argument(help="The site's name, its `site-id`.")],
    server: Annotated[str, typer.Option(help="HOST:PORT of the server, as for `flower-supernode --superlink`.")],
    key: Annotated[Path | None, typer.Option(help="The node's private key; by default certificates/SITE.")] = None,
    certificate: Annotated[Path, typer.Option(help="The server's authority.")] = Path("certificates/ca.crt"),
) -> None:
    """At a site: whether the server lets its node in; if not, whether clock, key or an earlier node is the cause.

    It is for before a node starts, as `node.sh` uses it: a node that runs already counts as an earlier one.
    """
    with plain_errors():
        from fedbayes.flower.node.admission import Admission

        Admission(site, server, certificate, key or Path("certificates") / site).ask()
    typer.echo(f"The server at {server} lets the node of site {site} in.")


def start_node(flags: typer.Context) -> None:
    """At a site: start its node, Flower's SuperNode, so that it looks for messages sooner. All flags are that one's.

    `flower-supernode` sleeps for three seconds whenever it finds no message, and starts a new Python for each.
    """
    from fedbayes.flower.node.start import start

    start(flags.args)


def _change_known(vault: "Vault", told: list[str], forgotten: list[str], *, has_partners: bool) -> None:
    """Add up with some sites, too, and with others no more."""
    from fedbayes.errors import ClientDataError
    from fedbayes.network.client.policy import is_key

    if has_partners:
        raise ClientDataError("The policy names this site's partners: change them there, under [sums.partners].")
    pairs = [each.partition("=") for each in told]
    if wrong := [each for each, (name, _, key) in zip(told, pairs, strict=True) if not name or not is_key(key)]:
        raise ClientDataError(
            f"`--trust` is {wrong[0]!r}. Write a site's name and the fingerprint that `fedbayes keys` shows there, "
            "--trust 'zurich=SHA256:...'."
        )
    known = vault.known_keys()
    if missing := [name for name in forgotten if name not in known]:
        raise ClientDataError(f"`--forget` names {missing[0]!r}, and the site knows {sorted(known)}.")
    left = {name: key for name, key in known.items() if name not in forgotten}
    vault.keep_keys({**left, **{name: key for name, _, key in pairs}})


def log(
    config: NodeConfig,
    last: Annotated[int, typer.Option(min=1, help="How many of the latest requests are shown.")] = 40,
) -> None:
    """At a site: what it was asked, what it has answered, and how many numbers have left it."""
    with plain_errors():
        from fedbayes.flower.sites import read_config
        from fedbayes.network.client.journal import Journal, as_text
        from fedbayes.network.client.naming import site_folder, site_name

        settings = read_config(config)
        name, journal = site_name(settings), Journal(site_folder(settings))
    if not journal.path.exists():
        typer.echo(f"Site {name} was asked nothing yet: there is no file '{journal.path}'.")
        return
    typer.echo(as_text(list(journal.entries()), last))
    if stands := _where_the_budget_stands(config):
        typer.echo(stands[0])


def privacy(config: NodeConfig) -> None:
    """At a site: how much of its owner's privacy budget is spent, and what the claim rests on."""
    lines = _where_the_budget_stands(config)
    typer.echo("\n".join(lines) or "The site's policy has no table [privacy], and no noisy answer has left it.")


def _where_the_budget_stands(config: str) -> list[str]:
    """What the site's noisy answers have told, in lines; none where there are none, and no budget."""
    with plain_errors():
        from fedbayes.flower.sites import read_config
        from fedbayes.network.client.journal import Journal, exact_numbers
        from fedbayes.network.client.ledger import Ledger, as_text
        from fedbayes.network.client.naming import site_folder
        from fedbayes.network.client.policy import read_policy

        settings = read_config(config)
        folder = site_folder(settings)
        return as_text(Ledger(folder), read_policy(settings).privacy, exact_numbers(Journal(folder).entries()))


def _tell(site: "Site", idata: object, path: Path) -> None:
    """What was written, in few lines."""
    posterior = idata["posterior"]  # type: ignore[index]  # of either generation of ArviZ
    typer.echo(f"The posterior of site {site.name}, given all sites' data, is in {path}.")
    typer.echo(f"It has {posterior.sizes['chain']} chains of {posterior.sizes['draw']} draws:")
    for name, values in posterior.data_vars.items():
        shape = list(values.shape[2:])
        mean, sd = values.mean(("chain", "draw")), values.std(("chain", "draw"))
        numbers = f"mean {float(mean):.3g}, sd {float(sd):.3g}" if not shape else f"shape {shape}"
        typer.echo(f"  {name}: {numbers}")
