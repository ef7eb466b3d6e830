"""The reference sharded module, clipping, scaler and checkpoints, compared with torch's own."""

import copy
import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from gradsync import run_ranks

ROOT = Path(__file__).parents[3]
PATHS = (str(ROOT / "solutions" / "phase3"), str(ROOT / "phase3"))
RANKS, STEPS = 3, 3  # the parameters of the model do not divide by 3
SMALL = {"width": 16, "layers": 2, "heads": 2}


def ours(*names):
    """Import names from the solution's trainer or the given model, on a rank."""
    sys.path[:0] = PATHS
    files = [importlib.import_module(name) for name in ("template_trainer", "model")]
    return [next(getattr(file, n) for file in files if hasattr(file, n)) for n in names]


def fully_sharded(model, dtype=None):
    """Return the model sharded by torch, each submodule that owns parameters by itself."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh)


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def together(rank, dtype, clip):
    """Train the same model with both; return the largest differences and the norms."""
    from torch.nn.utils import clip_grad_norm_ as clip_dtensors

    names = ("FullyShardedModule", "clip_grad_norm_", "Transformer")
    FullyShardedModule, clip_grad_norm_, Transformer = ours(*names)  # noqa: N806
    dtype = dtype and getattr(torch, dtype)
    torch.manual_seed(0)
    theirs = Transformer(**SMALL)
    model = FullyShardedModule(copy.deepcopy(theirs), compute_dtype=dtype)
    theirs = fully_sharded(theirs, dtype)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, theirs)]
    torch.manual_seed(rank + 1)
    norms, differences = [], []
    for _ in range(STEPS):
        tokens = torch.randint(256, (2, 9))
        for one, optimizer in zip((model, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(one, tokens).backward()
        model.finish()
        norms.append([clip_grad_norm_(model, clip)])
        norms[-1].append(clip_dtensors(theirs.parameters(), clip).full_tensor().item())
        for optimizer in optimizers:
            optimizer.step()
        whole = model.full_state_dict()
        expected = {name: p.full_tensor().detach() for name, p in theirs.named_parameters()}
        assert whole.keys() == expected.keys()
        differences.append(max((whole[n] - expected[n]).abs().max().item() for n in expected))
    return [norms, differences]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(None, 1e-5), ("bfloat16", 2e-2)])
def test_it_trains_like_fsdp2(dtype, limit):
    for norms, differences in run_ranks(together, RANKS, dtype=dtype, clip=0.5):
        assert max(differences) <= limit
        for own, other in norms:
            assert own == pytest.approx(other, rel=1e-5 if dtype is None else 2e-2)
            assert own > 0.5


def trained(rank, world_size, folder, resume):
    """Train two steps with both and save, or load and take a third step; return both states."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    names = ("FullyShardedModule", "save_sharded", "load_sharded", "Transformer")
    FullyShardedModule, save_sharded, load_sharded, Transformer = ours(*names)  # noqa: N806
    torch.manual_seed(resume)  # other weights before a checkpoint is loaded
    theirs = Transformer(**SMALL)
    model = FullyShardedModule(copy.deepcopy(theirs))
    theirs = fully_sharded(theirs)
    # With a large eps, the sign of a gradient that is nearly 0 makes no large step.
    options = {"lr": 0.01, "eps": 1e-2}
    pairs = [(m, torch.optim.AdamW(m.parameters(), **options)) for m in (model, theirs)]

    def step(number):
        torch.manual_seed(number)
        tokens = torch.randint(256, (6, 9)).chunk(world_size)[rank]
        for one, optimizer in pairs:
            optimizer.zero_grad()
            loss_of(one, tokens).backward()
        model.finish()
        for _, optimizer in pairs:
            optimizer.step()

    if resume:
        load_sharded(f"{folder}/ours", *pairs[0])
        state = dict(zip(("model", "optimizer"), get_state_dict(*pairs[1]), strict=True))
        dcp.load(state, checkpoint_id=f"{folder}/theirs")
        options = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(*pairs[1], **options)
        step(3)
    else:
        step(1)
        step(2)
        save_sharded(f"{folder}/ours", *pairs[0], 2)
        state = dict(zip(("model", "optimizer"), get_state_dict(*pairs[1]), strict=True))
        dcp.save(state, checkpoint_id=f"{folder}/theirs")
    expected = {name: p.full_tensor().detach() for name, p in theirs.named_parameters()}
    return [model.full_state_dict(), expected]


@pytest.mark.slow
def test_a_checkpoint_of_three_ranks_goes_on_with_two_like_one_of_dcp(tmp_path):
    run_ranks(trained, 3, folder=str(tmp_path), resume=0)

    for own, expected in run_ranks(trained, 2, folder=str(tmp_path), resume=1):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


def scaled(rank, flaws):
    """Return the scales of both scalers around steps whose gradients have these flaws."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    [LossScaler] = ours("LossScaler")  # noqa: N806
    models = [nn.Linear(2, 2) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    own = LossScaler(64.0, growth_interval=2)
    options = {"init_scale": 64.0, "growth_interval": 2, "growth_factor": 2.0}
    theirs = ShardedGradScaler(device="cpu", **options)
    scales = []
    for flaw in flaws:
        losses = [own.scale(torch.ones(())), theirs.scale(torch.ones(()))]
        for model, loss in zip(models, losses, strict=True):
            for param in model.parameters():
                param.grad = torch.ones_like(param) * loss
            param.grad[0] *= flaw[rank]
        stepped = own.step(optimizers[0], models[0])
        before = models[1].weight.detach().clone()
        theirs.step(optimizers[1])
        theirs.update()
        assert stepped == (not torch.equal(before, models[1].weight))
        scales.append([own.scale(torch.ones(())).item(), theirs.get_scale()])
    return scales


@pytest.mark.slow
def test_its_scaler_changes_the_scale_as_torch_s_sharded_one():
    infinity = float("inf")
    flaws = [(1, 1), (1, infinity), (1, 1), (1, 1), (infinity, 1), (1, 1), (1, 1), (1, 1)]

    for scales in run_ranks(scaled, 2, flaws=flaws):
        assert [own for own, _ in scales] == [other for _, other in scales]
        assert {own for own, _ in scales} == {32.0, 64.0}


def with_one_parameter(rank):
    """Return the dtypes and the gradients of a sharded layer in float16, in halves of 2 ranks."""
    [FullyShardedModule] = ours("FullyShardedModule")  # noqa: N806
    torch.manual_seed(0)
    layer = nn.Linear(5, 3, bias=False)
    plain = copy.deepcopy(layer)
    model = FullyShardedModule(layer, compute_dtype=torch.float16)
    inputs = torch.arange(10.0).view(2, 5) / 10 + rank
    model(inputs).float().sum().backward()
    model.finish()
    [param] = model.parameters()
    gathered = [torch.empty_like(param.grad) for _ in range(2)]
    dist.all_gather(gathered, param.grad)
    plain.half()(inputs.half()).float().sum().backward()
    mean = plain.weight.grad.float()
    dist.all_reduce(mean)
    return [str(param.dtype), str(param.grad.dtype), torch.cat(gathered)[:15].view(3, 5), mean / 2]


def test_parts_and_gradients_stay_in_float32():
    for dtype, of_gradient, gradient, mean in run_ranks(with_one_parameter, 2):
        assert dtype == of_gradient == "torch.float32"
        torch.testing.assert_close(gradient, mean, rtol=1e-3, atol=1e-3)
