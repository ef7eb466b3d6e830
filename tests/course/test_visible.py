"""The visible tests name common mistakes, and pass for correct answers."""

import pytest
from known_answers import COURSE, RIGHT, WRONG, written_anew
from quick_part import drawn

from gradsync.grading.grade import grade

SEEN = {
    "uses-torch's-sampler",
    "trains-with-ddp",
    "calls-torch's-all-reduce",
    "goes-through-a-set-of-gradients",
    "averages-in-the-order-of-a-set-of-names",
    "broadcasts-in-the-order-of-a-set-of-names",
    "fills-buckets-in-the-order-of-a-set",
    "orders-a-bucket-by-addresses",
    "rounds-the-share-down",
    "pads-only-once",
    "counts-epochs-by-itself",
    "reseeds-the-global-generator-of-numpy",
    "seeds-with-the-number-of-ranks",
    "returns-a-length-that-is-rounded-down",
    "divides-the-batch-size",
    "divides-the-batch-size-by-the-ranks",
    "divides-the-batch-among-the-ranks",
    "cuts-before-it-shuffles",
    "drops-the-fraction-of-the-mean",
    "sums-parameters-instead-of-gradients",
    "takes-the-maximum-of-the-gradients",
    "reduces-to-rank-0",
    "broadcasts-from-rank-0-for-any-source",
    "receives-into-a-copy-of-the-model",
    "clears-gradients-after-backward",
    "averages-after-the-step",
    "returns-no-loss-of-a-step",
    "stops-after-the-first-batch",
    "predicts-one-class-for-a-batch",
    "uses-the-rank-as-the-gpu's-number",
    "keeps-the-position-in-later-passes",
    "forgets-the-position-at-the-end-of-a-pass",
    "doubles-the-scale-only-once",
    "averages-no-small-gradients",
    "clears-the-gradients-before-the-step",
    "returns-scaled-norms",
    "ends-documents-with-0-whatever-the-end-is",
    "separates-at-byte-0-whatever-the-end-is",
    "counts-an-empty-document-to-the-one-before",
    "gives-unused-small-parameters-no-gradient",
    "shards-matrices-only",
    "reduces-gradients-in-finish",
    "returns-the-norm-after-clipping",
    "names-the-files-by-the-step",
    "does-not-wait-for-the-other-ranks'-files",
    "reads-all-files-in-the-folder",
    "masks-in-backward-whatever-causal-is",
    "asks-for-gradients-of-integers",
}


def check(submission, exercise):
    phase = exercise.partition("/")[0]
    return grade(
        submission, COURSE, phases=[phase], seed=3, audience="visible", exercises=[exercise]
    ).verdicts


@pytest.mark.parametrize(
    "key", drawn({key: [one.code] for key, one in WRONG.items() if one.name in SEEN})
)
def test_a_common_mistake_is_named(key):
    wrong = WRONG[key]

    diagnoses = [verdict.diagnosis for verdict in check(wrong.submission(COURSE), wrong.exercise)]
    assert next(diagnosis.code for diagnosis in diagnoses if diagnosis) == wrong.code


@pytest.mark.slow
@pytest.mark.parametrize("key", drawn(dict.fromkeys(RIGHT, ("a right answer",)), half=True))
def test_a_correct_answer_passes(key):
    submission = RIGHT[key].submission(COURSE)

    verdicts = [v for exercise in written_anew(RIGHT[key]) for v in check(submission, exercise)]

    assert [(v.id, v.message) for v in verdicts if v.status != "passed"] == []
