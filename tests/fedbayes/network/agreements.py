"""Agreements on a regression over a network in this process, and in none."""

import fedbayes as fb
from fedbayes.network.agreeing.server import agree_over
from fedbayes.network.agreeing.site import AgreeingSite
from fedbayes.network.rehearsal import Rehearsal


def network_of(folder, study, clients, policy="", load=None):
    """A site for each table, with its owner's policy."""
    sites = []
    for name, rows in clients.items():
        (folder / f"{name}.toml").write_text(policy)
        config = {"site-id": name, "state-dir": str(folder / name), "policy": str(folder / f"{name}.toml")}
        sites.append(AgreeingSite(study, load or (lambda config, rows=rows: rows), config))
    return Rehearsal(*sites)


def over(network, study, **options):
    """What the sites agree on."""
    return agree_over(
        network, study, **{"num_clients": len(network.sites), "join_timeout": 2.0, "timeout": 2.0} | options
    )


def here(study, clients):
    """The regression with the same agreement in one process."""
    options = {"family": study.family, "levels": study.levels, "missing": study.missing, **study.options}
    return fb.regression(study.formula, clients=clients, **options)
