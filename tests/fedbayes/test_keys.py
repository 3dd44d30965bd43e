"""Every purpose of random numbers has a key of its own."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import fedbayes as fb
from fedbayes.questions.predictions import key_of_predictions
from fedbayes.rounds.programs import client_secrets
from fedbayes.runtime.keys import Purpose, fingerprint, key_for, typed_key

ROWS = np.eye(3)


def test_purposes_and_their_places_have_different_keys(key) -> None:
    places = range(5)  # also what phases, clients, steps and replicates are numbered by
    keys = [jax.random.fold_in(key, place) for place in places]
    keys += [key_for(key, purpose) for purpose in Purpose]
    keys += [key_for(key, purpose, place) for purpose in Purpose for place in places]
    assert len({jax.random.key_data(each).tobytes() for each in keys}) == len(keys)


def test_a_key_of_the_old_kind_is_the_same_key() -> None:
    assert (
        jax.random.key_data(typed_key(jax.random.PRNGKey(3))).tolist()
        == jax.random.key_data(typed_key(jax.random.key(3))).tolist()
    )


@pytest.mark.parametrize("wrong", [3, None, np.zeros(2, np.uint32), np.zeros(2), "key"])
def test_what_is_no_key_is_refused(wrong) -> None:
    with pytest.raises(TypeError, match=r"`key` is .*; write a typed JAX key, such as `jax\.random\.key\(0\)`"):
        typed_key(wrong)
    with pytest.raises(TypeError, match="`key` is"):
        typed_key(jax.random.split(jax.random.key(0)))


def test_no_purpose_is_the_number_of_a_phase_or_of_another_purpose() -> None:
    assert len(Purpose.__members__) == len(set(Purpose))
    assert min(Purpose) > 1_000_000


def test_a_clients_secret_is_the_key_of_no_other_purpose(key) -> None:
    """It was that of the draws of what the rounds have integrated out."""
    secrets = {jax.random.key_data(secret).tobytes() for secret in client_secrets(key, 5)}
    others = [purpose for purpose in Purpose if purpose != Purpose.SECRETS]
    found = {jax.random.key_data(key_for(key, purpose, place)).tobytes() for purpose in others for place in range(5)}
    assert not secrets & found
    assert jax.random.key_data(key_for(key, Purpose.SECRETS, 2)).tobytes() in secrets  # the comparison sees one


def test_their_numbers_stand_in_one_file() -> None:
    """Elsewhere nobody could see that two are equal."""
    package = Path(fb.__file__).parent
    number = re.compile(r"\b1_000_(?!000\b)\d{3}\b")
    assert number.search((package / "runtime" / "keys.py").read_text())
    found = [path.name for path in package.rglob("*.py") if path.name != "keys.py" and number.search(path.read_text())]
    assert found == []


def noise(fit, name, **options) -> np.ndarray:
    """Of predictions of a linear model: at unit rows their means are the coefficients."""
    posterior = fit.idata.posterior if name is None else fit.client_posterior(name).posterior
    return fit.predict(name, x=ROWS, **options).posterior_predictive["y"].values - posterior["beta"].values


def test_predictions_of_two_clients_have_noise_of_their_own(small_fit) -> None:
    """It was the same, so that the difference of two clients' predictions had none."""
    asked = [*small_fit.client_names, None]
    found = [noise(small_fit, name) for name in asked]
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            assert np.all(np.abs(one - other) > 1e-9)
    np.testing.assert_array_equal(noise(small_fit, asked[0]), found[0])
    one, other = (noise(small_fit, name, key=jax.random.key(5)) for name in asked[:2])
    np.testing.assert_allclose(one, other, atol=1e-12)  # the same key gives the same noise: the comparison sees it
    np.testing.assert_array_equal(noise(small_fit, asked[0], key=jax.random.PRNGKey(5)), one)
    with pytest.raises(TypeError, match="`key` is 5; write a typed JAX key"):
        small_fit.predict(asked[0], x=ROWS, key=5)


def test_clients_that_join_later_are_told_apart_by_their_data(small_fit) -> None:
    name = small_fit.client_names[0]
    data = dict(small_fit.problem.held(name).arrays)
    others = [{**data, "y": data["y"] + 1.0}, {**data, "x": data["x"][::-1]}, data]
    keys = [key_of_predictions(small_fit.fitted, each) for each in [*others, name, None]]
    assert len({jax.random.key_data(each).tobytes() for each in keys}) == len(keys)


@pytest.mark.parametrize(
    "other", [{"b": np.arange(4)}, {"a": np.arange(4.0)}, {"a": np.arange(4).reshape(2, 2)}, {"a": np.arange(5)}, {}]
)
def test_a_fingerprint_sees_names_types_shapes_and_values(other) -> None:
    assert fingerprint({"a": np.arange(4)}) != fingerprint(other)
    assert fingerprint({"a": np.arange(4), "b": np.ones(1)}) == fingerprint({"b": np.ones(1), "a": np.arange(4)})
