"""Each submodule is a checkpoint that gathers inside, so backward gathers and computes again."""

import hashlib
import io
import json
import math

from torch.utils.checkpoint import checkpoint


class _FromParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, shape, dtype):
        ranks = dist.get_world_size()
        whole = torch.empty(ranks * part.numel(), dtype=dtype)
        dist.all_gather_into_tensor(whole, part.detach().to(dtype))
        ctx.size, ctx.dtype = part.numel(), part.dtype
        return whole[: shape.numel()].view(shape)

    @staticmethod
    def backward(ctx, grad):
        ranks = dist.get_world_size()
        padded = torch.zeros(ranks * ctx.size, dtype=ctx.dtype)
        padded[: grad.numel()] = grad.reshape(-1).to(ctx.dtype)
        mine = torch.empty(ctx.size, dtype=ctx.dtype)
        dist.reduce_scatter_tensor(mine, padded)
        return mine / ranks, None, None


def _cast(thing, dtype):
    if isinstance(thing, Tensor) and thing.is_floating_point():
        return thing.to(dtype)
    if isinstance(thing, (tuple, list)):
        return type(thing)(_cast(one, dtype) for one in thing)
    if isinstance(thing, dict):
        return {name: _cast(one, dtype) for name, one in thing.items()}
    return thing


class FullyShardedModule(nn.Module):
    def __init__(self, module, *, compute_dtype=None):
        super().__init__()
        self.module = module
        self.compute_dtype = compute_dtype
        self.full_shapes = {}  # the id of a part -> the shape of the whole
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor.data, 0)
        parts = {}
        for owner in module.modules():
            large = []
            for name, parameter in list(owner._parameters.items()):
                if parameter is None or parameter.dim() < 2:
                    continue
                if id(parameter) not in parts:
                    parts[id(parameter)] = parameter, self._part_of(parameter)
                owner._parameters[name] = parts[id(parameter)][1]
                large.append(name)
            if large:
                self._gather_in(owner, large)
            elif compute_dtype is not None and any(p is not None for p in owner._parameters.values()):
                dtype = next(p.dtype for p in owner._parameters.values() if p is not None)
                owner.register_forward_pre_hook(
                    lambda _, args, options, dtype=dtype: (
                        _cast(args, dtype),
                        _cast(options, dtype),
                    ),
                    with_kwargs=True,
                )

    def _part_of(self, parameter):
        size = -(-parameter.numel() // dist.get_world_size())
        part = torch.zeros(size, dtype=parameter.dtype)
        begin = size * dist.get_rank()
        mine = parameter.detach().flatten()[begin : begin + size]
        part[: mine.numel()] = mine
        part = nn.Parameter(part, requires_grad=parameter.requires_grad)
        self.full_shapes[id(part)] = parameter.shape
        return part

    def _gather_in(self, owner, large):
        plain = owner.forward

        def compute(*args, **options):
            kept = dict(owner._parameters)
            try:
                for name, parameter in kept.items():
                    if name in large:
                        dtype = self.compute_dtype or parameter.dtype
                        shape = self.full_shapes[id(parameter)]
                        owner._parameters[name] = _FromParts.apply(parameter, shape, dtype)
                    elif parameter is not None and self.compute_dtype is not None:
                        owner._parameters[name] = parameter.to(self.compute_dtype)
                return plain(*args, **options)
            finally:
                owner._parameters.update(kept)

        def forward(*args, **options):
            if self.compute_dtype is not None:
                args, options = _cast(args, self.compute_dtype), _cast(options, self.compute_dtype)
            if not torch.is_grad_enabled():
                return compute(*args, **options)
            return checkpoint(compute, *args, use_reentrant=False, **options)

        owner.forward = forward

    def forward(self, *args, **options):
        return self.module(*args, **options)

    def finish(self):
        for parameter in self.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if id(parameter) not in self.full_shapes:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    @torch.no_grad()
    def full_state_dict(self):
        found = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            if id(parameter) in self.full_shapes:
                shape = self.full_shapes[id(parameter)]
                found[name] = _FromParts.apply(parameter, shape, parameter.dtype)
        return found


def clip_grad_norm_(model, max_norm):
    grads = [(p.grad, id(p) in model.full_shapes) for p in model.parameters() if p.grad is not None]
    squares = math.fsum(float(g.double().square().sum()) for g, sharded in grads if sharded)
    everyone = [0.0] * dist.get_world_size()
    dist.all_gather_object(everyone, squares)
    whole = sum(float(g.double().square().sum()) for g, sharded in grads if not sharded)
    norm = (sum(everyone) + whole) ** 0.5
    if norm > max_norm and math.isfinite(norm):
        torch._foreach_mul_([g for g, _ in grads], max_norm / norm)
    return norm


def _read(path):
    try:
        return path.read_bytes()
    except OSError as problem:
        raise FileNotFoundError(f"{path} can't be read: {problem}") from problem


def save_sharded(folder, model, optimizer, step):
    folder, rank, ranks = Path(folder), dist.get_rank(), dist.get_world_size()
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "checkpoint.json"
    try:
        generation = json.loads(index.read_text())["generation"] + 1
    except FileNotFoundError:
        generation = 0
    named = dict(model.module.named_parameters())
    content = {
        "tensors": {name: p.detach().clone() for name, p in named.items()},
        "numels": {
            name: model.full_shapes[id(p)].numel()
            for name, p in named.items()
            if id(p) in model.full_shapes
        },
        "buffers": dict(model.module.named_buffers()),
        "state": {n: dict(optimizer.state[p]) for n, p in named.items() if p in optimizer.state},
        "groups": optimizer.state_dict()["param_groups"],
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    name = f"shard-{generation}-{rank}.pt"
    with open(folder / name, "wb") as file:
        file.write(buffer.getvalue())
        file.flush()
        os.fsync(file.fileno())
    hashes = [None] * ranks
    dist.all_gather_object(hashes, (name, hashlib.sha256(buffer.getvalue()).hexdigest()))
    if rank == 0:
        fresh = folder / "checkpoint.json.new"
        about = {"generation": generation, "step": step, "files": hashes}
        fresh.write_text(json.dumps(about))
        os.replace(fresh, index)
        for old in folder.glob("shard-*.pt"):
            if old.name not in dict(hashes):
                old.unlink()
    dist.barrier()


def load_sharded(folder, model, optimizer):
    folder, rank, ranks = Path(folder), dist.get_rank(), dist.get_world_size()
    index = folder / "checkpoint.json"
    try:
        about = json.loads(_read(index))
        step, files = about["step"], about["files"]
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"{index} is damaged: {problem}") from problem
    shards = []
    for name, digest in files:
        data = _read(folder / name)
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{folder / name} is not the file that was saved")
        shards.append(torch.load(io.BytesIO(data), weights_only=True))

    def cut(name, values):
        numel = shards[0]["numels"].get(name)
        size = shards[0]["tensors"][name].shape
        if numel is None or not isinstance(values[0], Tensor) or values[0].shape != size:
            return values[0]
        share = -(-numel // ranks)
        padded = torch.zeros(share * ranks, dtype=values[0].dtype)
        padded[:numel] = torch.cat(values)[:numel]
        return padded.view(ranks, share)[rank].clone()

    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            parameter.copy_(cut(name, [shard["tensors"][name] for shard in shards]))
            optimizer.state.pop(parameter, None)
            if name in shards[0]["state"]:
                optimizer.state[parameter] = {
                    key: cut(name, [shard["state"][name][key] for shard in shards])
                    for key in shards[0]["state"][name]
                }
        for name, buffer in model.module.named_buffers():
            buffer.copy_(shards[0]["buffers"][name])
    for group, saved in zip(optimizer.param_groups, shards[0]["groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
    return step
