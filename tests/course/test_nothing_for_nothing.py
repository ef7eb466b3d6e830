"""No test passes for an answer that does nothing."""

import ast
from pathlib import Path

import pytest
from quick_part import drawn

from gradsync.course.catalogue import find_course
from gradsync.course.known_submissions import untouched
from gradsync.grading.grade import grade
from gradsync.submission import Submission

COURSE = find_course(Path(__file__).parent)
PHASES = COURSE.graded_phases("hidden")
NAMES = "dataset num_replicas rank RANK WORLD_SIZE LOCAL_RANK MASTER_PORT SLURM_PROCID SLURM_NTASKS"
EMPTIEST = {  # annotated return type -> an empty answer; otherwise None
    "int": "0",
    "float": "0.0",
    "range": "range(0)",
    "Iterator[int]": "iter(())",
    "RankInfo": "RankInfo(0, 1, 0, '127.0.0.1', 29500)",
    "dict[str, Any]": "{'loss': 0.0, 'accuracy': 0.0, 'samples': 0}",
    "list[dict[str, Any]]": "[]",
    "list[tuple[Tensor, ...]]": "[]",
}
CONSTANTS = {  # a constant answer
    "int": "1",
    "float": "1.0",
    "range": "range(1)",
    "Iterator[int]": "iter([0])",
    "dict[str, Any]": "{'loss': 1.0, 'accuracy': 1.0, 'samples': 1}",
    "list[dict[str, Any]]": (
        "[{'epoch': 0, 'train_loss': 1.0, 'val_loss': 1.0, 'val_accuracy': 1.0}]"
    ),
    "list[tuple[Tensor, ...]]": "[tuple(batch)]",
}
ENDLESS = {"Iterator[int]": "iter(int, 1)", "list[tuple[Tensor, ...]]": "iter(tuple, None)"}
WITH_CONSTANTS = [
    "phase2/ResumableDistributedSampler",
    "phase2/shard_without_padding",
    "phase2/split_microbatches",
    "phase2/train_step_accumulated",
    "phase2/evaluate",
    "phase2/train",
    "phase2/pipeline_train_step",
]
WITHOUT_END = ["phase2/ResumableDistributedSampler", "phase2/split_microbatches"]
WITH_EMPTY_ANSWERS = [
    "phase1/PaddedDistributedSampler",
    "phase1/read_rank_info",
    "phase1/train_epoch",
    "phase1/evaluate",
    "phase2/ResumableDistributedSampler",
    "phase2/split_microbatches",
    "phase2/evaluate",
]
THAT_REFUSE = [
    "phase1/PaddedDistributedSampler",
    "phase1/read_rank_info",
    "phase1/load_checkpoint",
    "phase2/ResumableDistributedSampler",
    "phase2/split_microbatches",
    "phase2/ColumnParallelLinear",
]
SAMPLER = "phase1/PaddedDistributedSampler"
_LOOKALIKES = [  # the exercise, the function and its new body
    (SAMPLER, "__iter__", "return iter([0] * 9)"),
    (SAMPLER, "__iter__", "return iter(range(9))"),
    (SAMPLER, "__iter__", "while True: yield 0"),
    (
        "phase1/evaluate",
        "evaluate",
        "model.eval()(next(iter(loader))[0]); return {'loss': 0, 'accuracy': 0, 'samples': 0}",
    ),
    ("phase1/train_epoch", "train_epoch", "return float(len([model(x) for x, _ in loader]))"),
    ("phase1/average_gradients", "average_gradients", "model.zero_grad(set_to_none=False)"),
    ("phase1/broadcast_model", "broadcast_model", "[p.data.zero_() for p in model.parameters()]"),
    ("phase1/save_checkpoint", "save_checkpoint", "open(path, 'w').write(str(epoch))"),
    ("phase1/load_checkpoint", "load_checkpoint", "return 7"),
    (
        "phase1/train",
        "train",
        "print('0\\n1\\n2') if info.rank == 0 else None; return [{'epoch': k, 'train_loss': 1.0, "
        "'val_loss': 1.0, 'val_accuracy': 0.5} for k in range(epochs)]",
    ),
]
LOOKALIKES = {f"{each[0]}: {each[2]}"[:60]: each for each in _LOOKALIKES}
SLOW = "handwritten_digits"  # a test with slow imports, which would evaluate an untrained model


def with_bodies(body_of):
    """Return the templates with each TODO replaced by `body_of(function)`."""

    def filled(source):
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and isinstance(todo := node.body[-1], ast.Raise):
                lines[todo.lineno - 1] = " " * todo.col_offset + body_of(node)
        return "\n".join(lines)

    files = untouched(COURSE).files
    assert all(b"raise NotImplementedError" in text for text in files.values())
    return Submission("stub", {p: filled(text.decode()).encode() for p, text in files.items()})


def earned(submission, phase, **options):
    """Return the tests that a submission passes, and the number of all tests."""
    report = grade(submission, COURSE, phases=[phase], seed=1, **options)
    return [v.id for v in report.verdicts if v.points or v.status == "passed"], len(report.verdicts)


@pytest.mark.parametrize("phase", drawn(dict.fromkeys(PHASES, ("a phase",))))
def test_functions_that_do_nothing_earn_nothing(phase):
    stub = with_bodies(lambda _: "return None")

    passed, count = earned(stub, phase, pytest_options=[f"-k=not {SLOW}"])

    assert count > 50
    assert passed == []


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_an_empty_file_is_reported_in_every_test(phase):
    empty = Submission("empty", dict.fromkeys(untouched(COURSE).files, b""))

    report = grade(empty, COURSE, phases=[phase], seed=1)

    codes = {
        verdict.id: verdict.diagnosis and verdict.diagnosis.code for verdict in report.verdicts
    }
    assert len(codes) > 50
    assert {name: code for name, code in codes.items() if code != "missing-name"} == {}


STUBS = {  # what each function does, and the exercises
    "returns the emptiest value": (EMPTIEST, WITH_EMPTY_ANSWERS),
    "returns a constant": (CONSTANTS, WITH_CONSTANTS),
    "raises": (None, THAT_REFUSE),
}
STUBBED = {f"{does}: {each}": [does] for does, (_, every) in STUBS.items() for each in every}


@pytest.mark.parametrize("case", drawn(STUBBED))
def test_an_answer_of_the_right_type_earns_nothing(case):
    does, exercise = case.split(": ")
    values, _ = STUBS[does]
    stub = with_bodies(
        lambda node: (
            f"return {values.get(ast.unparse(node.returns))}"
            if values
            else f"raise ValueError({NAMES!r})"
        )
    )

    passed, count = earned(stub, exercise.partition("/")[0], exercises=[exercise])

    assert count > 0
    assert passed == []


@pytest.mark.parametrize("exercise", WITHOUT_END)
def test_endless_iterators_earn_nothing_and_do_not_hang(exercise):
    stub = with_bodies(lambda node: f"return {ENDLESS.get(ast.unparse(node.returns))}")

    report = grade(stub, COURSE, phases=[exercise.partition("/")[0]], seed=1, exercises=[exercise])

    assert [v.id for v in report.verdicts if v.points or v.status == "passed"] == []
    assert [v.id for v in report.verdicts if v.status == "timeout"] == []


@pytest.mark.parametrize("case", drawn(dict.fromkeys(LOOKALIKES, ("a constant",))))
def test_a_constant_that_looks_like_an_answer_earns_nothing(case):
    exercise, function, body = LOOKALIKES[case]
    stub = with_bodies(lambda node: body if node.name == function else "return None")
    options = [f"-k=not {SLOW}"]

    passed, count = earned(stub, "phase1", exercises=[exercise], pytest_options=options)

    assert count > 0
    assert passed == []
