"""Keys of 256 bits: against Threefry itself, and that every bit of them counts."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.runtime.wide import PLAIN, WIDE, told_key, wide_key

SECRET = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210"
OTHERS = [SECRET[:at] + format(int(SECRET[at], 16) ^ 1, "x") + SECRET[at + 1 :] for at in range(64)]


def plain_keys(secret: str = SECRET) -> list:
    """The four keys of Threefry in a secret."""
    words = np.frombuffer(bytes.fromhex(secret), np.uint32).reshape(4, 2)
    return [jax.random.wrap_key_data(jnp.asarray(pair), impl=PLAIN) for pair in words]


def bits(key) -> bytes:
    return np.asarray(jax.random.bits(key, (4,), jnp.uint32)).tobytes()


@pytest.mark.parametrize("kind", [jnp.uint8, jnp.uint16, jnp.uint32])
def test_bits_are_the_sum_without_carry_of_four_streams(kind):
    each = [jax.random.bits(jax.random.fold_in(key, place), (5,), kind) for place, key in enumerate(plain_keys())]
    expected = reduce(np.bitwise_xor, map(np.asarray, each))
    np.testing.assert_array_equal(jax.random.bits(wide_key(SECRET), (5,), kind), expected)


def test_keys_are_folded_and_split_one_by_one():
    folded = [jax.random.key_data(jax.random.fold_in(key, 7)) for key in plain_keys()]
    np.testing.assert_array_equal(jax.random.key_data(jax.random.fold_in(wide_key(SECRET), 7)), np.concatenate(folded))
    split = np.stack([jax.random.key_data(jax.random.split(key, 3)) for key in plain_keys()], axis=1).reshape(3, 8)
    np.testing.assert_array_equal(jax.random.key_data(jax.random.split(wide_key(SECRET), 3)), split)
    assert jax.random.split(wide_key(SECRET), (2, 3)).shape == (2, 3)


def test_every_digit_of_the_secret_counts():
    """In the bits, in those of a folded key, and in those of both halves of a split one."""
    keys = jnp.stack([wide_key(secret) for secret in (SECRET, *OTHERS)])
    folded = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    split = jax.vmap(jax.random.split)(keys)
    draw = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32)))
    for each in (keys, folded, split[:, 0], split[:, 1]):
        assert len({row.tobytes() for row in np.asarray(draw(each))}) == 65


def test_equal_keys_do_not_cancel():
    assert bits(wide_key("ab" * 32)) != bytes(16)


def test_distributions_take_wide_keys():
    """What JAX draws is a function of the bits alone, which are those above."""
    key = wide_key(SECRET)
    assert jax.random.normal(key, (3,)).shape == (3,)
    assert sorted(np.asarray(jax.random.permutation(key, 5))) == [0, 1, 2, 3, 4]
    assert bits(jax.random.key(0, impl=WIDE)) != bits(jax.random.key(1, impl=WIDE))


@pytest.mark.parametrize("impl", [PLAIN, "rbg"])
def test_a_told_key_is_of_its_own_kind(impl):
    told = jax.random.key(3, impl=impl)
    own = told_key(jax.random.key_data(told), jax.random.key(4, impl=impl))
    assert own == told
    assert jax.random.key_impl(own) == impl


def test_a_told_key_is_plain_beside_a_wide_one():
    told = jax.random.key(3, impl=PLAIN)
    assert told_key(jax.random.key_data(told), wide_key(SECRET)) == told
