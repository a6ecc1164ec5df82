"""`ops.hashing`: the hash from its formula, and what makes it a hash of angles."""

import itertools
import math

import pytest
import torch

from kinfolk.ops import lsh_hash as hashing
from kinfolk.ops.naive import lsh_hash as slow


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("factors", [(1,), (2,), (6,), (4, 6), (2, 1, 4)], ids=str)
def test_equals_naive(factors):
    q, rotations = normal(2, 3, 7, 5), hashing.rotations(3, 3, 5, 2, factors).double()
    buckets = hashing.hash_buckets(q, rotations, factors)
    assert buckets.shape == (2, 3, 2, 7)
    assert torch.equal(buckets, slow.hash_buckets(q, rotations, factors))
    assert buckets.max() < math.prod(factors)


def test_only_the_direction_of_a_vector_counts_and_its_opposite_goes_elsewhere():
    q, rotations = normal(1, 1, 50, 8), hashing.rotations(0, 1, 8, 3, (8,)).double()
    buckets = hashing.hash_buckets(q, rotations, (8,))
    assert torch.equal(hashing.hash_buckets(17.5 * q, rotations, (8,)), buckets)
    # [xR ; -xR]: the opposite vector stands in the opposite half
    assert torch.equal(hashing.hash_buckets(-q, rotations, (8,)), (buckets + 4) % 8)


def test_no_gradient_flows_and_a_zero_vector_has_a_bucket():
    q, rotations = normal(1, 1, 4, 3).requires_grad_(), hashing.rotations(0, 1, 3, 1, (4,)).double()
    assert not hashing.hash_buckets(q, rotations, (4,)).requires_grad
    assert hashing.hash_buckets(torch.zeros(1, 1, 2, 3), rotations.float(), (4,)).eq(0).all()


def test_directions_are_a_function_of_the_seed_alone():
    before = torch.random.get_rng_state()
    a, b, c = (hashing.rotations(seed, 2, 4, 3, (4, 2)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert a.shape == (2, 4, 3, 3)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    # heads and rounds have directions of their own
    assert not torch.equal(a[0], a[1])
    assert not torch.equal(a[:, :, 0], a[:, :, 1])


def test_the_wider_the_angle_the_rarer_a_collision():
    # 4000 heads have 4000 hashes
    rotations = hashing.rotations(0, 4000, 8, 1, (8,)).double()
    shares = []
    for angle in (0.0, 0.3, 0.8, 1.6, 2.4):
        pair = torch.zeros(1, 1, 2, 8, dtype=torch.float64)
        pair[0, 0, 0, 0], pair[0, 0, 1, 0], pair[0, 0, 1, 1] = 1.0, math.cos(angle), math.sin(angle)
        buckets = hashing.hash_buckets(pair.expand(1, 4000, 2, 8), rotations, (8,))[0, :, 0]
        shares.append((buckets[:, 0] == buckets[:, 1]).double().mean().item())
    assert shares[0] == 1.0
    assert all(near > far + 0.02 for near, far in itertools.pairwise(shares)), shares


@pytest.mark.parametrize(
    ("length", "size", "factors"),
    [
        (64, 64, (2,)),
        (17, 64, (2,)),
        (1024, 64, (32,)),
        (2048, 64, (64,)),
        (16384, 64, (16, 32)),
        (65536, 64, (32, 64)),
    ],
)
def test_buckets_hold_about_half_a_sight(length, size, factors):
    assert hashing.bucket_factors(length, size) == factors
