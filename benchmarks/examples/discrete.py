"""Programs with discrete latents, which NumPyro sums out: annotation, recapture, Markov chains, mixtures."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit, logit, logsumexp
from numpyro.contrib.control_flow import scan
from numpyro.distributions.util import clamp_probs
from numpyro.handlers import mask, reparam
from numpyro.infer.reparam import LocScaleReparam
from numpyro.ops.indexing import Vindex

import fedbayes as fb
from examples.example import Clients, Example, named, rng

_CLASSES, _ANNOTATORS = 2, 3
_FAVOURS = 1.0 + 3.0 * np.eye(_CLASSES)  # a prior under which labels can't be exchanged


def _true_class(items: int, pi: Any) -> Any:
    with fb.local():
        return numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})


def multinomial(labels: Any) -> None:
    items, positions = labels.shape
    with numpyro.plate("class", _CLASSES):
        zeta = numpyro.sample("zeta", dist.Dirichlet(_FAVOURS))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(zeta[c]), obs=labels)


def dawid_skene(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("annotator", _ANNOTATORS, dim=-2), numpyro.plate("class", _CLASSES):
        beta = numpyro.sample("beta", dist.Dirichlet(_FAVOURS))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(Vindex(beta)[who, c, :]), obs=labels)


def mace(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("annotator", _ANNOTATORS):
        epsilon = numpyro.sample("epsilon", dist.Dirichlet(jnp.full(_CLASSES, 10.0)))
        theta = numpyro.sample("theta", dist.Beta(0.5, 0.5))
    with numpyro.plate("item", items, dim=-2):
        with fb.local():
            c = numpyro.sample("c", dist.DiscreteUniform(0, _CLASSES - 1), infer={"enumerate": "parallel"})
        with numpyro.plate("position", positions):
            with fb.local():
                spam = numpyro.sample("spam", dist.Bernoulli(1.0 - theta[who]), infer={"enumerate": "parallel"})
            probs = jnp.where(spam[..., None] == 0, jax.nn.one_hot(c, _CLASSES), epsilon[who])
            numpyro.sample("y", dist.Categorical(probs), obs=labels)


def hierarchical_dawid_skene(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("class", _CLASSES):
        zeta = numpyro.sample("zeta", dist.Normal(jnp.array([[1.5], [-1.5]]), 1.0).to_event(1))
        omega = numpyro.sample("omega", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
    with numpyro.plate("annotator", _ANNOTATORS, dim=-2), numpyro.plate("class", _CLASSES):
        with reparam(config={"beta": LocScaleReparam(0)}):
            beta = numpyro.sample("beta", dist.Normal(zeta, omega).to_event(1))
        beta = jnp.pad(beta, [(0, 0)] * (jnp.ndim(beta) - 1) + [(0, 1)])
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(logits=Vindex(beta)[who, c, :]), obs=labels)


def item_difficulty(labels: Any) -> None:
    items, positions = labels.shape
    with numpyro.plate("class", _CLASSES):
        eta = numpyro.sample("eta", dist.Normal(jnp.array([[1.5], [-1.5]]), 1.0).to_event(1))
        chi = numpyro.sample("chi", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with fb.local(), reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(eta[c], chi[c]).to_event(1))
        theta = jnp.pad(theta, [(0, 0)] * (jnp.ndim(theta) - 1) + [(0, 1)])
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(logits=theta), obs=labels)


def logistic_random_effects(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("class", _CLASSES):
        zeta = numpyro.sample("zeta", dist.Normal(jnp.array([[1.5], [-1.5]]), 1.0).to_event(1))
        omega = numpyro.sample("omega", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
        chi = numpyro.sample("chi", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
    with numpyro.plate("annotator", _ANNOTATORS, dim=-2), numpyro.plate("class", _CLASSES):
        with reparam(config={"beta": LocScaleReparam(0)}):
            beta = numpyro.sample("beta", dist.Normal(zeta, omega).to_event(1))
        beta = jnp.pad(beta, [(0, 0)] * (jnp.ndim(beta) - 1) + [(0, 1)])
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with fb.local(), reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(0.0, chi[c]).to_event(1))
        theta = jnp.pad(theta, [(0, 0)] * (jnp.ndim(theta) - 1) + [(0, 1)])
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(logits=Vindex(beta)[who, c, :] - theta), obs=labels)


def annotation_clients(items: int = 30) -> Clients:
    """Each client has items of its own, the annotators are the same."""
    random, clients = rng("annotation"), []
    right = np.array([[0.9, 0.8], [0.8, 0.85], [0.7, 0.9]])
    for _ in range(3):
        c = random.integers(0, 2, items)
        flip = random.uniform(size=(items, _ANNOTATORS)) > right[:, c].T
        clients.append(dict(labels=np.where(flip, 1 - c[:, None], c[:, None])))
    return named(*clients)


def _captures(history: Any, survival: Any, recapture: Any, whole: Any = int) -> None:
    """Capture and recapture of marked animals; whether one is still alive is summed out."""
    animals = history.shape[0]

    def step(carry: Any, seen: Any) -> Any:
        captured, alive = carry
        phi = survival()
        with numpyro.plate("animals", animals, dim=-1), mask(mask=captured):
            lives = captured * phi * alive + (1 - captured)
            with fb.local():
                alive = numpyro.sample("z", dist.Bernoulli(clamp_probs(lives)), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Bernoulli(clamp_probs(recapture * alive)), obs=seen)
        return (captured | seen.astype(bool), alive), None

    start = (history[:, 0].astype(bool), jnp.ones(animals, whole))
    scan(step, start, jnp.swapaxes(history[:, 1:], 0, 1))


def _unit(name: str) -> Any:
    return numpyro.sample(name, dist.Uniform(0.0, 1.0))


def capture_1(history: Any, male: Any) -> None:
    phi = _unit("phi")
    _captures(history, lambda: phi, _unit("rho"))


def capture_int32(history: Any, male: Any) -> None:
    phi = _unit("phi")
    _captures(history, lambda: phi, _unit("rho"), jnp.int32)


def capture_2(history: Any, male: Any) -> None:
    _captures(history, lambda: _unit("phi"), _unit("rho"))


def capture_3(history: Any, male: Any) -> None:
    mean, sigma = logit(_unit("phi_mean")), numpyro.sample("phi_sigma", dist.Uniform(0.0, 10.0))

    def survival() -> Any:
        with reparam(config={"phi_logit": LocScaleReparam(0)}):
            return expit(numpyro.sample("phi_logit", dist.Normal(mean, sigma)))

    _captures(history, survival, _unit("rho"))


def capture_4(history: Any, male: Any) -> None:
    phi = male * _unit("phi_male") + (1.0 - male) * _unit("phi_female")
    _captures(history, lambda: phi, _unit("rho"))


def capture_5(history: Any, male: Any) -> None:
    beta = male * numpyro.sample("phi_beta", dist.Normal(0.0, 10.0))

    def survival() -> Any:
        return expit(beta + numpyro.sample("phi_gamma", dist.Normal(0.0, 10.0)))

    _captures(history, survival, _unit("rho"))


def capture_clients() -> Clients:
    random, clients = rng("capture"), []
    for _ in range(3):
        male = random.integers(0, 2, 40).astype(float)
        first, alive = random.integers(0, 3, 40), np.ones(40, int)
        history = np.zeros((40, 6), int)
        for t in range(6):
            alive = np.where(t > first, alive * (random.uniform(size=40) < 0.65 + 0.15 * male), alive)
            seen = (random.uniform(size=40) < 0.7) * alive
            history[:, t] = np.where(t == first, 1, np.where(t > first, seen, 0))
        clients.append(dict(history=history, male=male))
    return named(*clients)


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


def toy_mixture(a: Any, c: Any) -> None:
    p_a = numpyro.sample("p_a", dist.Beta(1.0, 1.0))
    p_b = numpyro.sample("p_b", dist.Beta(jnp.array([10.0, 1.0]), jnp.array([1.0, 10.0])).to_event(1))
    p_c = numpyro.sample("p_c", dist.Beta(jnp.array([10.0, 1.0]), jnp.array([1.0, 10.0])).to_event(1))
    with numpyro.plate("rows", a.shape[0]):
        a = numpyro.sample("a", dist.Bernoulli(p_a), obs=a)
        with fb.local():
            b = numpyro.sample("b", dist.Bernoulli(Vindex(p_b)[a]), infer={"enumerate": "parallel"})
        numpyro.sample("c", dist.Bernoulli(Vindex(p_c)[b]), obs=c)


def toy_clients() -> Clients:
    random, clients = rng("toy"), []
    for size in (60, 40, 80):
        a = random.integers(0, 2, size)
        b = random.uniform(size=size) < np.array([0.85, 0.2])[a]
        c = (random.uniform(size=size) < np.array([0.9, 0.15])[b.astype(int)]).astype(int)
        clients.append(dict(a=a, c=c))
    return named(*clients)


def mixture(y: Any) -> None:
    """Two Gaussian components whose means are ordered, so that they can't be exchanged."""
    weights = numpyro.sample("weights", dist.Dirichlet(2.0 * jnp.ones(2)))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
    base = dist.Normal(0.0, 10.0).expand([2]).to_event(1)
    locs = numpyro.sample("locs", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    with numpyro.plate("rows", y.shape[0]):
        with fb.local():
            which = numpyro.sample("which", dist.Categorical(weights), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(locs[which], scale), obs=y)


def mixture_clients() -> Clients:
    random, clients = rng("mixture"), []
    for size in (40, 60, 50):
        which = (random.uniform(size=size) < 0.6).astype(int)
        clients.append(dict(y=np.array([-2.0, 1.5])[which] + random.normal(size=size)))
    return named(*clients)


def angles(phi_psi: Any, components: int = 2) -> None:
    """A mixture of sine-skewed bivariate von Mises distributions; locations set the components apart."""
    weights = numpyro.sample("weights", dist.Dirichlet(2.0 * jnp.ones(components)))
    with numpyro.plate("components", components):
        phi_loc = numpyro.sample("phi_loc", dist.VonMises(jnp.array([-1.5, 1.5])[:components], 4.0))
        psi_loc = numpyro.sample("psi_loc", dist.VonMises(0.0, 0.5))
        phi_conc = numpyro.sample("phi_conc", dist.Beta(2.0, 5.0))
        psi_conc = numpyro.sample("psi_conc", dist.Beta(2.0, 5.0))
        corr = numpyro.sample("corr", dist.Beta(2.0, 10.0))
        skewness = numpyro.sample("skewness", dist.Normal(0.0, 0.5).expand((2,)).to_event(1))
        skewness = dist.transforms.L1BallTransform()(skewness)
    with numpyro.plate("rows", phi_psi.shape[0], dim=-1):
        with fb.local():
            which = numpyro.sample("which", dist.Categorical(weights), infer={"enumerate": "parallel"})
        sine = dist.SineBivariateVonMises(
            phi_loc=phi_loc[which],
            psi_loc=psi_loc[which],
            phi_concentration=20.0 * phi_conc[which],
            psi_concentration=20.0 * psi_conc[which],
            weighted_correlation=corr[which],
        )
        numpyro.sample("phi_psi", dist.SineSkewed(sine, skewness[which]), obs=phi_psi)


def angle_clients() -> Clients:
    random, clients = rng("angles"), []
    for size in (40, 40, 40):
        which = (random.uniform(size=size) < 0.5).astype(int)
        centre = np.array([[-1.3, 0.8], [1.4, -0.6]])[which]
        clients.append(dict(phi_psi=centre + random.normal(0.0, 0.4, size=(size, 2))))
    return named(*clients)


def discrete_imputation(a: Any, seen: Any, b: Any) -> None:
    """A binary covariate that some rows lack; it is summed out there."""
    p_a = numpyro.sample("p_a", dist.Beta(1.0, 1.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(1.0, 1.0))
    with numpyro.plate("rows", a.shape[0]):
        with mask(mask=seen):
            numpyro.sample("a", dist.Bernoulli(p_a), obs=a)
        with fb.local(), mask(mask=~seen):
            imputed = numpyro.sample("imputed", dist.Bernoulli(p_a).mask(~seen), infer={"enumerate": "parallel"})
        value = jnp.where(seen, a, imputed)
        numpyro.sample("b", dist.Normal(intercept + slope * value, 0.7), obs=b)


def discrete_imputation_clients() -> Clients:
    random, clients = rng("discrete imputation"), []
    for size in (40, 60, 50):
        a, seen = random.integers(0, 2, size), random.uniform(size=size) < 0.7
        clients.append(dict(a=np.where(seen, a, 0), seen=seen, b=1.2 * a + 0.7 * random.normal(size=size)))
    return named(*clients)


_LABELS = "simulated; two classes, their prior set apart"
EXAMPLES = (
    Example("annotation multinomial", "annotation.py, mn", multinomial, annotation_clients, _LABELS),
    Example("annotation dawid-skene", "annotation.py, ds", dawid_skene, annotation_clients, _LABELS),
    Example("annotation mace", "annotation.py, mace", mace, annotation_clients, _LABELS),
    Example("annotation hierarchical", "annotation.py, hds", hierarchical_dawid_skene, annotation_clients, _LABELS),
    Example(
        "annotation item difficulty", "annotation.py, id", item_difficulty, lambda: annotation_clients(12), _LABELS
    ),
    Example(
        "annotation random effects",
        "annotation.py, lre",
        logistic_random_effects,
        lambda: annotation_clients(12),
        _LABELS,
    ),
    Example("capture 1", "capture_recapture.py, model 1", capture_1, capture_clients),
    Example(
        "capture 1, int32",
        "capture_recapture.py, model 1",
        capture_int32,
        capture_clients,
        "the carry of `scan` begins as `jnp.int32`, as NumPyro writes it",
    ),
    Example("capture 2", "capture_recapture.py, model 2", capture_2, capture_clients, "globals inside `scan`"),
    Example("capture 3", "capture_recapture.py, model 3", capture_3, capture_clients, "globals inside `scan`"),
    Example("capture 4", "capture_recapture.py, model 4", capture_4, capture_clients),
    Example("capture 5", "capture_recapture.py, model 5", capture_5, capture_clients, "globals inside `scan`"),
    Example("hmm", "hmm.py", hmm, hmm_clients, "by `lax.scan` and `numpyro.factor`"),
    Example("hmm_enum 1", "hmm_enum.py, model 1", hmm_1, sequence_clients, "two states"),
    Example("hmm_enum 2", "hmm_enum.py, model 2", hmm_2, sequence_clients, "two states"),
    Example("hmm_enum 3", "hmm_enum.py, model 3", hmm_3, sequence_clients, "twice two states"),
    Example("hmm_enum 4", "hmm_enum.py, model 4", hmm_4, sequence_clients, "twice two states"),
    Example("hmm_enum 6", "hmm_enum.py, model 6", hmm_6, sequence_clients, "two states, second order"),
    Example("toy_mixture", "toy_mixture_model_discrete_enumeration.py", toy_mixture, toy_clients),
    Example("gmm", "gmm.ipynb", mixture, mixture_clients, "ordered means"),
    Example("ssbvm_mixture", "ssbvm_mixture.py", angles, angle_clients, "simpler priors of the concentrations"),
    Example("discrete imputation", "discrete_imputation.ipynb", discrete_imputation, discrete_imputation_clients),
)
