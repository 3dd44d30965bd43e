"""Hidden Markov chains, whose states are summed out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan
from numpyro.handlers import mask
from numpyro.ops.indexing import Vindex

import fedbayes as fb
from examples.example import Clients, Example, named, rng


def hmm(categories: Any, words: Any, unlabelled: Any) -> None:
    """Half of the words come with their categories; the forward algorithm sums the others' out."""
    transition = numpyro.sample("transition", dist.Dirichlet(jnp.ones((2, 2))))
    emission = numpyro.sample("emission", dist.Dirichlet(jnp.full((2, 3), 1.0)))
    numpyro.sample("categories", dist.Categorical(transition[categories[:-1]]), obs=categories[1:])
    numpyro.sample("words", dist.Categorical(emission[categories]), obs=words)
    log_transition, log_emission = jnp.log(transition), jnp.log(emission)

    def step(log_prob: Any, word: Any) -> Any:
        return logsumexp(log_prob[:, None] + log_transition + log_emission[:, word], axis=0), None

    log_prob, _ = jax.lax.scan(step, log_emission[:, unlabelled[0]], unlabelled[1:])
    numpyro.factor("unlabelled", logsumexp(log_prob, axis=0, keepdims=True))


def hmm_clients() -> Clients:
    random, clients = rng("hmm"), []
    transition, emission = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    for size in (30, 40, 30):
        c = [0]
        for _ in range(2 * size):
            c.append(int(random.choice(2, p=transition[c[-1]])))
        words = np.array([random.choice(3, p=emission[each]) for each in c])
        clients.append(dict(categories=np.array(c[:size]), words=words[:size], unlabelled=words[size + 1 :]))
    return named(*clients)


_STATES, _TONES = 2, 2


def _sticky(size: int = _STATES) -> Any:
    """A prior of transitions under which a chain stays, as in NumPyro's example, but with more weight."""
    return dist.Dirichlet(3.0 * jnp.eye(size) + 1.0)


def _probabilities(*shape: int) -> Any:
    """Of a tone in each state: seldom in the first, often in the others; so states can't be exchanged."""
    prior = jnp.linspace(1.0, 4.0, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return numpyro.sample("probs_y", dist.Beta(prior, 5.0 - prior).expand(shape).to_event(len(shape)))


def _steps(sequences: Any, lengths: Any, step: Any, start: Any, history: int = 1) -> None:
    def transition(carry: Any, tones: Any) -> Any:
        state, t = carry
        with numpyro.plate("sequences", sequences.shape[0], dim=-2), mask(mask=(t < lengths)[..., None]):
            state = step(state, tones)
        return (state, t + 1), None

    scan(transition, (start, 0), jnp.swapaxes(sequences, 0, 1), history=history)


def _hidden(name: str, probs: Any) -> Any:
    with fb.local():
        return numpyro.sample(name, dist.Categorical(probs), infer={"enumerate": "parallel"})


def _observe(tones: Any, probs: Any) -> Any:
    return numpyro.sample("y", dist.Bernoulli(probs), obs=tones)


def hmm_1(sequences: Any, lengths: Any) -> None:
    probs_x = numpyro.sample("probs_x", _sticky().to_event(1))
    probs_y = _probabilities(_STATES, _TONES)

    def step(x: Any, tones: Any) -> Any:
        x = _hidden("x", probs_x[x])
        with numpyro.plate("tones", _TONES, dim=-1):
            _observe(tones, probs_y[x.squeeze(-1)])
        return x

    _steps(sequences, lengths, step, jnp.zeros((sequences.shape[0], 1), int))


def hmm_2(sequences: Any, lengths: Any) -> None:
    probs_x = numpyro.sample("probs_x", _sticky().to_event(1))
    probs_y = _probabilities(_STATES, 2, _TONES)

    def step(carry: Any, tones: Any) -> Any:
        x, before = carry
        x = _hidden("x", probs_x[x])
        with numpyro.plate("tones", _TONES, dim=-1) as which:
            tones = _observe(tones, probs_y[x, before, which])
        return x, tones

    number = sequences.shape[0]
    start = (jnp.zeros((number, 1), int), jnp.zeros((number, _TONES), sequences.dtype))
    _steps(sequences, lengths, step, start)


def hmm_3(sequences: Any, lengths: Any) -> None:
    probs_w = numpyro.sample("probs_w", _sticky().to_event(1))
    probs_x = numpyro.sample("probs_x", _sticky().to_event(1))
    probs_y = _probabilities(_STATES, _STATES, _TONES)

    def step(carry: Any, tones: Any) -> Any:
        w, x = _hidden("w", probs_w[carry[0]]), _hidden("x", probs_x[carry[1]])
        with numpyro.plate("tones", _TONES, dim=-1) as which:
            _observe(tones, probs_y[w, x, which])
        return w, x

    zero = jnp.zeros((sequences.shape[0], 1), int)
    _steps(sequences, lengths, step, (zero, zero))


def hmm_4(sequences: Any, lengths: Any) -> None:
    probs_w = numpyro.sample("probs_w", _sticky().to_event(1))
    probs_x = numpyro.sample("probs_x", _sticky().expand_by([_STATES]).to_event(2))
    probs_y = _probabilities(_STATES, _STATES, _TONES)

    def step(carry: Any, tones: Any) -> Any:
        w = _hidden("w", probs_w[carry[0]])
        x = _hidden("x", Vindex(probs_x)[w, carry[1]])
        with numpyro.plate("tones", _TONES, dim=-1) as which:
            _observe(tones, probs_y[w, x, which])
        return w, x

    zero = jnp.zeros((sequences.shape[0], 1), int)
    _steps(sequences, lengths, step, (zero, zero))


def hmm_6(sequences: Any, lengths: Any) -> None:
    probs_x = numpyro.sample("probs_x", _sticky().expand([_STATES, _STATES]).to_event(2))
    probs_y = _probabilities(_STATES, _TONES)

    def step(carry: Any, tones: Any) -> Any:
        before, x = carry
        before, x = x, _hidden("x", Vindex(probs_x)[before, x])
        with numpyro.plate("tones", _TONES, dim=-1):
            _observe(tones, probs_y[x.squeeze(-1)])
        return before, x

    zero = jnp.zeros((sequences.shape[0], 1), int)
    _steps(sequences, lengths, step, (zero, zero), history=2)


def sequence_clients() -> Clients:
    random, clients = rng("sequences"), []
    transition, tone = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([[0.2, 0.1], [0.7, 0.9]])
    for _ in range(3):
        sequences, lengths = np.zeros((6, 10, 2), int), random.integers(6, 11, 6)
        for s in range(6):
            x = 0
            for t in range(10):
                x = int(random.choice(2, p=transition[x]))
                sequences[s, t] = random.uniform(size=2) < tone[x]
        clients.append(dict(sequences=sequences, lengths=lengths))
    return named(*clients)


EXAMPLES = (
    Example("hmm", "hmm.py", hmm, hmm_clients, "by `lax.scan` and `numpyro.factor`"),
    Example("hmm_enum 1", "hmm_enum.py, model 1", hmm_1, sequence_clients, "two states"),
    Example("hmm_enum 2", "hmm_enum.py, model 2", hmm_2, sequence_clients, "two states"),
    Example("hmm_enum 3", "hmm_enum.py, model 3", hmm_3, sequence_clients, "twice two states"),
    Example("hmm_enum 4", "hmm_enum.py, model 4", hmm_4, sequence_clients, "twice two states"),
    Example("hmm_enum 6", "hmm_enum.py, model 6", hmm_6, sequence_clients, "two states, second order"),
)
