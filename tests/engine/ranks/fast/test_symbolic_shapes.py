"""torch's symbolic shapes are imported only when needed, and are then complete."""

import sys

import pytest
import torch

from gradsync import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs the fork launcher"),
    pytest.mark.usefixtures("afresh"),
]
NAME = "torch.fx.experimental.symbolic_shapes"


def has_run():
    return "sympy" in sys.modules


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_backward_with_a_given_gradient_does_not_import_them(launcher):
    def function():
        inputs = torch.ones(2, 3, requires_grad=True)
        (inputs * 2).backward(torch.full((2, 3), 5.0))
        return [inputs.grad, has_run()]

    gradient, ran = run_ranks(function, 1, launcher=launcher)[0]

    assert gradient.tolist() == [[10.0] * 3] * 2
    assert not ran


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 1), (6,), ()])
def test_a_gradient_of_the_wrong_shape_raises_torchs_error(shape):
    def function(shape):
        try:
            torch.ones(2, 3, requires_grad=True).mul(2).backward(torch.ones(shape))
        except RuntimeError as error:
            return str(error)

    reported = run_ranks(function, 1, shape=shape)[0]

    with pytest.raises(RuntimeError) as refused:
        torch.ones(2, 3, requires_grad=True).mul(2).backward(torch.ones(shape))
    assert reported == str(refused.value)


@pytest.mark.slow
def test_symbolic_shapes_are_compared_by_the_real_module():
    def function():
        shapes = sys.modules[NAME]
        equal, expect = shapes.sym_eq, shapes.expect_true
        began = has_run()
        size = shapes.ShapeEnv().create_unbacked_symint()
        same = equal((size,), (size,))
        return [began, has_run(), expect(same), equal is not shapes.sym_eq, equal(3, 3)]

    assert run_ranks(function, 1)[0] == [False, True, True, True, True]


def test_it_is_found_by_every_way_of_importing_it():
    def function():
        import torch.fx.experimental.symbolic_shapes as one
        from torch.fx.experimental import symbolic_shapes as other

        third = torch.fx.experimental.symbolic_shapes
        return [one is other is third, has_run(), one.ShapeEnv.__name__, has_run()]

    assert run_ranks(function, 1)[0] == [True, False, "ShapeEnv", True]


def test_imports_of_one_run_are_available_in_the_next():
    def function(asks):
        began_with = has_run()
        if asks:
            from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: F401
        return began_with

    seen = [run_ranks(function, 2, asks=asks) for asks in (False, True, False)]

    assert [list(values) for values in seen] == [[False] * 2, [False] * 2, [True] * 2]
