"""What a warm EP round over 1,024 ragged clients costs, in pooled gradients per draw, and where the time goes.

``python benchmarks/round_cost.py`` prints the numbers. One draw of a round is one position per client, so that a round
with n draws and R replicates evaluates every row n R times, as n R pooled gradients would; the unit is therefore n R
times the cost of one gradient of the pooled log density, taken one after the other inside one compiled loop.
"""

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from federated import Federation
from problems import BenchmarkSet, logistic_set
from rich.console import Console
from rich.table import Table

import fedbayes
from fedbayes.algorithm import Phase, Reply, Update
from fedbayes.inference.local.after import AFTER
from fedbayes.inference.local.draws import importance_inputs
from fedbayes.inference.local.tilted import Tilted
from fedbayes.numerics.gaussian import unpacked
from fedbayes.numerics.importance import pareto_smooth, quasi_normal
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.exchange import Heard, Round
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.programs import Programs


class Part(NamedTuple):
    """One line of the profile: milliseconds, the least of several."""

    name: str
    milliseconds: float


def least_time(run: Callable[[], Any], repeats: int = 3) -> float:
    """Milliseconds of the quickest of several calls, after one that compiles."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)


def pooled_gradient(problem: BenchmarkSet, repeats: int = 30) -> tuple[float, float]:
    """Milliseconds of one gradient of the pooled log density: alone in a loop, and as one of 64 positions at once."""
    pooled = make_problem(problem.model, {"everybody": problem.pooled_data})
    client = pooled.client("everybody")
    gradient = jax.grad(lambda theta, client: pooled.prior.log_density(theta) + client.log_factor(theta))
    size = pooled.globals.size

    @jax.jit
    def loop(client: Any) -> jax.Array:
        return jax.lax.fori_loop(0, repeats, lambda _, x: x + 1e-9 * gradient(x, client), jnp.zeros(size))

    together = jax.jit(jax.vmap(gradient, (0, None)))
    positions = 0.1 * jax.random.normal(jax.random.key(0), (64, size))
    return least_time(lambda: loop(client)) / repeats, least_time(lambda: together(positions, client)) / 64


def stages(num_draws: int) -> Mapping[str, Callable]:
    """The local update cut short after each of its stages: ``(tilted, warm, shift) -> anything``."""

    def mode(tilted: Tilted, warm: Any, shift: jax.Array) -> Any:
        return tilted.mode(warm.position).white

    def scores(tilted: Tilted, warm: Any, shift: jax.Array) -> Any:
        found = tilted.mode(warm.position)
        values, slopes = tilted.scores(found.position + quasi_normal(shift, num_draws) @ found.white)
        return jnp.sum(values), jnp.sum(slopes, axis=0)

    def weights(tilted: Tilted, warm: Any, shift: jax.Array) -> Any:
        found, noise = tilted.mode(warm.position), quasi_normal(shift, num_draws)
        position = found.position + noise @ found.white
        values, slopes = tilted.scores(position)
        weight, k_hat = pareto_smooth(values + tilted.log_cavities(position) + 0.5 * jnp.sum(noise**2, axis=1))
        return weight @ slopes, k_hat

    def evaluation(tilted: Tilted, warm: Any, shift: jax.Array) -> Any:
        return tilted.log_density(warm.position)

    return {"no work at all": evaluation, "+ Newton": mode, "+ draws and scores": scores, "+ Pareto smoothing": weights}


def shortened(stage: Callable, size: int) -> Update:
    """A client's half of EP's round that ends after a stage."""

    def run(shared: Any, cavity: Any, warm: Any, client: Any, shift: jax.Array) -> tuple[Reply, Any]:
        return Reply(each=stage(Tilted(client, unpacked(cavity), shared.mean), warm, shift)), warm

    return Update(run, lambda key, shared, num_locals: importance_inputs(key, size + num_locals))


def profile(federation: Federation, num_draws: int) -> list[Part]:
    """Milliseconds up to and including each stage, in the batched executor, then the server's share."""
    problem, current, method = federation.problem, federation.current, federation.method
    whole = method.phases(federation.roster)[current.phase]
    updates = {label: shortened(stage, problem.globals.size) for label, stage in stages(num_draws).items()}
    updates["+ regression: the whole local update"] = next(iter(whole.algorithm.updates.values()))
    phase = Phase(algorithm=whole.algorithm._replace(updates=updates), max_rounds=1)
    programs, executor = Programs([phase], AFTER, method.num_replicates), Batched(chunk=federation.executor.chunk)
    executor.connect(programs, problem, jax.random.key(0))
    server = programs.server(0)
    shared, personal = server.broadcast(current.state)
    executor.begin(0, shared, jax.random.key(1))
    executor.restore(federation.executor.snapshot())
    everybody, key = np.arange(len(problem.names)), jax.random.key(3)

    def ask(label: str) -> Heard:
        return executor.run(Round(0, shared, personal, key, everybody, [label] * len(everybody)))

    parts = [Part(label, least_time(lambda label=label: ask(label).replies.each)) for label in updates]
    replies = ask("+ regression: the whole local update").replies
    parts.append(Part("server: broadcast", least_time(lambda: server.broadcast(current.state))))
    parts.append(Part("server: aggregate", least_time(lambda: server.aggregate(current.state, replies, key))))
    return parts


def padded_share(federation: Federation) -> float:
    """Padded rows over real rows."""
    padded = sum(bucket.clients.mask.size for bucket in federation.problem.buckets)
    return padded / sum(int(bucket.clients.mask.sum()) for bucket in federation.problem.buckets)


def main(
    clients: Annotated[int, typer.Option(help="Ragged clients.")] = 1024,
    draws: Annotated[int, typer.Option(help="Draws per client, round and replicate.")] = 256,
    replicates: Annotated[int, typer.Option(help="Independent runs at once.")] = 1,
    chunk: Annotated[int, typer.Option(help="Clients per compiled call; 0: the executor's choice.")] = 0,
) -> None:
    """Measure and print."""
    jax.config.update("jax_enable_x64", True)
    problem = logistic_set(clients)
    alone, together = pooled_gradient(problem)
    federation = Federation(problem, fedbayes.EP(num_samples=draws, num_replicates=replicates))
    federation.executor.chunk = chunk or None
    federation.run(jax.random.key(0))
    whole = least_time(federation.round)
    print(f"whole round {whole:.0f} ms, one pooled gradient {alone:.2f} ms", flush=True)
    again, _ = pooled_gradient(problem)
    alone = min(alone, again)
    parts = [Part("whole round", whole), *profile(federation, draws)]
    shown = Table(title=f"{clients} ragged clients, {draws} draws x {replicates} replicates")
    for column in ("", "ms", "pooled gradients per draw"):
        shown.add_column(column, justify="left" if not column else "right")
    for part in parts:
        shown.add_row(part.name, f"{part.milliseconds:,.1f}", f"{part.milliseconds / (alone * draws * replicates):.2f}")
    console = Console()
    console.print(f"One pooled gradient: {alone:.2f} ms alone in a loop, {together:.2f} ms as one of 64 at once.")
    console.print(
        f"Padded rows: {padded_share(federation):.2f} times the real ones, {len(federation.problem.buckets)} shapes."
    )
    console.print(shown)


if __name__ == "__main__":
    typer.run(main)
