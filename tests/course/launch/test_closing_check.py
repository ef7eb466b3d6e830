"""The check at the end of `gradsync train`: it accepts correct trainers and names mistakes."""

import re

import pytest
import torch
from known_answers import COURSE, RIGHT, WRONG, written_anew
from quick_part import drawn

from gradsync.course.known_submissions import reference
from gradsync.grading.suite.learner_files import LearnerFiles
from gradsync.grading.suite.suite_ranks import SuiteRanks
from gradsync.ranks import get_launcher
from support.probes.closing import observed
from support.rules.closing import closing_mistake, different_weights
from support.training import RECIPES

CPU = torch.device("cpu")
TRAINER = "template_trainer.py"


def used_by(exercise):
    """Return this exercise and all that it needs."""
    return {exercise.id}.union(*(used_by(COURSE.find(need)) for need in exercise.needs))


USED = {name for phase in RECIPES for name in used_by(COURSE.find(f"{phase}/train"))}
IN_TRAINING = {key: USED.intersection(written_anew(one)) for key, one in RIGHT.items()}


def check(files, phase, folder, world_size):
    """Return what the closing check finds in these files."""
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    sampler = RECIPES[phase].sampler

    def probe(rank, world_size, trainer, sampler, device):
        info = trainer.RankInfo(rank, world_size, 0, "127.0.0.1", 29500)
        return observed(trainer.train, info, device, sampler)

    ranks = SuiteRanks(get_launcher(), LearnerFiles(folder, COURSE, phase), seed="3")
    seen = ranks(probe, world_size, sampler=sampler, device=CPU)
    return closing_mistake(list(seen), RECIPES[phase].headings)


@pytest.mark.parametrize("key", drawn({key: names for key, names in IN_TRAINING.items() if names}))
def test_a_correct_answer_passes(key, tmp_path):
    files = RIGHT[key].submission(COURSE).files

    for world_size in (2, 3):
        assert check(files, RIGHT[key].phase, tmp_path, world_size) is None


MOMENTA = {
    "momentum": "momentum=0.87",
    "nesterov": "momentum=0.4, nesterov=True",
    "dampening": "momentum=0.8, dampening=0.3",
}


@pytest.mark.parametrize("name", MOMENTA)
@pytest.mark.parametrize("phase", RECIPES)
def test_any_momentum_is_right(phase, name, tmp_path):
    files = changed(phase, "SGD(model.parameters(), lr=lr", f"\\g<0>, {MOMENTA[name]}")

    assert check(files, phase, tmp_path, 2) is None


def test_one_rank_is_right(tmp_path):
    assert check(reference(COURSE).files, "phase1", tmp_path, 1) is None


def changed(phase, old, new):
    """Return the solution with one replacement in its trainer."""
    files = dict(reference(COURSE).files)
    text, count = re.subn(re.escape(old), new, files[f"{phase}/{TRAINER}"].decode())
    assert count == 1
    files[f"{phase}/{TRAINER}"] = text.encode()
    return files


# Known mistakes that training shows, and the code that the closing check gives each.
NAMED = {
    "phase1/forgets-to-divide": "sum-not-mean",
    "phase1/divides-twice": "divided-twice",
    "phase1/does-not-average": "gradients-not-synchronised",
    "phase1/averages-only-matrices": "only-some-parameters",
    "phase1/gathers-on-rank-0": "only-one-rank-has-it",
    "phase1/starts-from-different-models": "models-differ",
    "phase1/broadcasts-too-late": "models-differ",
    "phase1/broadcasts-from-the-last-rank": "wrong-source",
    "phase1/forgets-the-buffers": "buffers-not-broadcast",
    "phase1/trains-with-a-different-seed-on-each-rank": "shuffle-differs-across-ranks",
    "phase1/trains-on-rank-0's-share-on-every-rank": "same-shard-on-every-rank",
    "phase1/trains-on-all-samples-on-every-rank": "sampler-not-used",
    "phase1/rounds-the-share-down": "samples-missing",
    "phase1/never-shuffles": "not-shuffled",
    "phase1/passes-epoch-0-in-every-epoch": "epoch-not-set",
    "phase1/counts-epochs-from-one": "epoch-not-set",
    "phase1/divides-the-batch-size": "batch-size-divided",
    "phase1/never-clears-gradients": "gradients-not-zeroed",
    "phase1/forgets-the-step": "does-not-learn",
    "phase1/returns-its-own-loss": "loss-is-local",
    "phase1/averages-the-batches'-losses": "mean-of-means",
    "phase1/evaluates-before-training": "differs-from-single-process",
    "phase1/returns-the-history-only-on-rank-0": "only-one-rank-has-it",
    "phase2/leaves-the-sum-in-the-buckets": "sum-not-mean",
    "phase2/averages-after-the-optimizer-step": "gradients-not-synchronised",
    "phase2/starts-each-rank-from-its-own-weights": "models-differ",
}


@pytest.mark.parametrize("key", drawn({key: [code] for key, code in NAMED.items()}))
def test_a_mistake_is_named(key, tmp_path):
    found = check(WRONG[key].submission(COURSE).files, WRONG[key].phase, tmp_path, 2)

    assert found is not None
    assert found.code == NAMED[key], found.explanation


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("torch.optim.SGD(", "torch.optim.Adam(", "as with Adam"),
        ("SGD(model.parameters(), lr=lr", "\\g<0>, weight_decay=0.1", "as weight decay does"),
        ("SGD(model.parameters(), lr=lr", "\\g<0> * 0.3", "0.3 times the step of one process"),
        (
            "param.grad /= dist.get_world_size()",
            "dist.broadcast(param.grad, src=1)\n        param.grad.clamp_(-0.01, 0.01)",
            "The first step on ranks 0 and 1 differs",
        ),
        (
            "train_loss = train_epoch(",
            "optimizer.param_groups[0]['lr'] = lr / (epoch + 1)\n        \\g<0>",
            "Until step 2, training equals that of one process",
        ),
    ],
)
def test_steps_of_another_kind_are_described(old, new, text, tmp_path):
    found = check(changed("phase1", old, new), "phase1", tmp_path, 2)

    assert found is not None
    assert text in found.explanation


def test_the_trained_models_of_the_ranks_are_compared():
    own = {"weight": torch.tensor([1.0, -2.0])}
    rounded = {"weight": own["weight"] + 1e-5}  # other orders of additions, in many steps
    other = {"weight": own["weight"] + 0.01}

    assert different_weights([own, rounded], "Training") is None
    assert different_weights([own, own, other], "Training").ranks == (2,)


@pytest.mark.parametrize("phase", RECIPES)
def test_each_heading_is_in_the_guide(phase):
    guide = (COURSE.root / phase / "GUIDELINES.md").read_text()

    assert {*vars(RECIPES[phase].headings).values()} <= {*re.findall(r"^#+ (.+)$", guide, re.M)}
