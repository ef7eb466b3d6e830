"""Gradients in buckets: how many, how large, in which order, and how early they are sent."""

import itertools

import numpy as np
import pytest

from gradsync.testing import check, exercise, raise_mistake
from gradsync.testing.values import close
from support.probes.chains import probe_buckets, probe_overlap, stretch_of
from support.rules.buckets import waits_in_backward
from support.rules.packing import not_one_bucket, nothing_sent_early, packed_wrongly

GUIDE = "Buckets and overlap"
MIB = 2**20
SIZES = [2880, 2400, 3600, 2640, 3120]  # elements: no two of them fit under the cap
CAP = 3700 * 4 / MIB  # MiB
# Several fit under a cap of 1200, one does not; 720 and 440 together do, unless a MiB is 10**6.
MIXED = [480, 720, 440, 6000, 360, 600, 120, 840, 960]
EXACT = [480, 500, 600, 720, 480]  # the last two are exactly as large as a cap of 1200
CAPPED = [(MIXED, 1200, "float32"), (SIZES, 3700, "float64"), (EXACT, 1200, "float32")]


@exercise("phase2/BucketedGradientAverager", points=2)
def test_a_small_cap_makes_several_buckets(ranks):
    """No bucket exceeds the cap, except a single larger parameter; the last layers come first."""
    cases = [(sizes, cap * np.dtype(name).itemsize / MIB, name) for sizes, cap, name in CAPPED]

    seen = ranks(probe_buckets, 2, cases=cases, steps=2)

    for (case, (sizes, cap, name)), step in itertools.product(enumerate(CAPPED), range(2)):
        raise_mistake(packed_wrongly(seen, stretch_of(case, step, 2), sizes, cap, name))


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_small_model_is_one_bucket(ranks):
    """With the default cap, all gradients of a small model are sent in one bucket."""
    seen = ranks(probe_buckets, 2, cases=[(MIXED, None, "float32")], steps=1)

    raise_mistake(not_one_bucket(seen, MIXED, seen[0]))


@pytest.mark.parametrize(
    "moments",
    [["second"], ["interrupted", "unused"]],
    ids=["in the second step", "whatever happened before"],
)
@exercise("phase2/BucketedGradientAverager", points=3)
def test_buckets_are_sent_during_backward(ranks, moments):
    """The first bucket is sent before backward ends, and backward does not wait for it."""
    options = {"sizes": SIZES, "cap": CAP, "moments": moments}
    seen = ranks(probe_overlap, 2, mistakes=[waits_in_backward], **options)

    raise_mistake(nothing_sent_early(seen, SIZES, moments))
    check(
        all(close(value, seen[0]) for value in seen),
        "gradients-not-synchronised",
        "Buckets are sent during backward, but after finish() the ranks have different gradients.",
        ranks=range(len(seen)),
        guide=GUIDE,
    )
