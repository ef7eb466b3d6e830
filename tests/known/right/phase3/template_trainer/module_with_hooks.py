"""Forward hooks, parts of each submodule side by side, its own clipping and checkpoints."""

import pickle


class _Part:
    def __init__(self, name, param):
        self.name, self.shape, self.count = name, tuple(param.shape), param.numel()
        self.each = -(-self.count // dist.get_world_size())
        self.mine = nn.Parameter(self.split(param.data).clone(), param.requires_grad)

    def split(self, whole):
        room = torch.zeros(self.each * dist.get_world_size(), dtype=whole.dtype)
        room[: self.count] = whole.reshape(-1)
        return room[dist.get_rank() * self.each :][: self.each]

    def whole(self, dtype):
        parts = [torch.empty(self.each, dtype=dtype) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.mine.data.to(dtype))
        return torch.cat(parts)[: self.count].reshape(self.shape)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mine, part, dtype, box):
        ctx.part, ctx.box = part, box
        return part.whole(dtype)

    @staticmethod
    def backward(ctx, grad):
        part, ranks = ctx.part, dist.get_world_size()
        ctx.box.clear()
        room = torch.zeros(part.each * ranks, dtype=part.mine.dtype)
        room[: part.count] = grad.reshape(-1).to(part.mine.dtype)
        out = torch.empty(part.each, dtype=part.mine.dtype)
        dist.reduce_scatter(out, list((room / ranks).chunk(ranks)))
        return out, None, None, None


class FullyShardedModule(nn.Module):
    def __init__(self, module, *, compute_dtype=None):
        super().__init__()
        self.module, self.compute = module, compute_dtype
        self.parts = {}  # id of a part -> its description
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                tensor.copy_(self.of_rank_0(tensor))
        done = {}
        for name, owner in list(module.named_modules()):
            for key, param in list(owner._parameters.items()):
                if param is not None and param.dim() > 1:
                    if param not in done:
                        done[param] = _Part(f"{name}.{key}", param)
                    owner._parameters[key] = done[param].mine
                    self.parts[id(done[param].mine)] = done[param]
            if any(p is not None for p in owner._parameters.values()):
                owner.register_forward_pre_hook(self.before, with_kwargs=True)
                owner.register_forward_hook(self.after, always_call=True)
        done.clear()

    @staticmethod
    def of_rank_0(tensor):
        copy = tensor.detach().clone().contiguous()
        dist.broadcast(copy, src=0)
        return copy

    def before(self, owner, args, kwargs):
        large = {
            k: p for k, p in owner._parameters.items() if p is not None and id(p) in self.parts
        }
        boxes = {}
        for key, param in large.items():
            box = []
            whole = _Whole.apply(param, self.parts[id(param)], self.compute or param.dtype, box)
            owner.__dict__[key] = whole
            boxes[whole.untyped_storage()._cdata] = (self.parts[id(param)], whole.dtype, box)
        if self.compute and large:
            for key, param in owner._parameters.items():
                if param is not None and key not in large:
                    owner.__dict__[key] = param.to(self.compute)
        hooks = torch.autograd.graph.saved_tensors_hooks(self.pack(boxes), self.unpack)
        hooks.__enter__()
        owner.__dict__["_stack"] = [
            *owner.__dict__.get("_stack", []),
            (hooks, list(owner._parameters)),
        ]
        if self.compute is None:
            return None
        small = next(p for p in owner._parameters.values() if p is not None)
        wanted = self.compute if large else small.dtype

        def cast(value):
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(wanted) if is_float else value

        return tuple(map(cast, args)), {key: cast(value) for key, value in kwargs.items()}

    def after(self, owner, _args, _output):
        hooks, names = owner.__dict__["_stack"].pop()
        hooks.__exit__(None, None, None)
        for name in names:
            owner.__dict__.pop(name, None)

    @staticmethod
    def pack(boxes):
        def packed(tensor):
            found = boxes.get(tensor.untyped_storage()._cdata)
            if found is None:
                return tensor
            return (*found, tensor.shape, tensor.stride(), tensor.storage_offset())

        return packed

    @staticmethod
    def unpack(saved):
        if isinstance(saved, Tensor):
            return saved
        part, dtype, box, *view = saved
        if box:
            return box[0].as_strided(*view)
        whole = part.whole(dtype)
        if part.mine.requires_grad:
            box.append(whole)
        return whole.as_strided(*view)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish(self):
        for param in self.parameters():
            if param.requires_grad and param.grad is None:
                param.grad = torch.zeros_like(param)
            if param.requires_grad and id(param) not in self.parts:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()

    def full_state_dict(self):
        found = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            part = self.parts.get(id(value))
            found[name] = part.whole(value.dtype) if part else value.detach().clone()
        return found


def clip_grad_norm_(model, max_norm):
    squares = {True: 0.0, False: 0.0}
    for param in model.parameters():
        if param.grad is not None:
            squares[id(param) in model.parts] += float(param.grad.double().pow(2).sum())
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, squares[True])
    norm = (sum(every) + squares[False]) ** 0.5
    if max_norm < norm < float("inf"):
        for param in model.parameters():
            if param.grad is not None:
                param.grad.mul_(max_norm / norm)
    return norm


def save_sharded(folder, model, optimizer, step):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / "current"
    before = current.read_text().split() if current.exists() else ["1"]
    turn = str(1 - int(before[0]))
    names = {id(p): n for n, p in model.module.named_parameters()}
    kept = {names[id(p)]: dict(s) for p, s in optimizer.state.items()}
    path = folder / f"turn{turn}-rank{dist.get_rank()}"
    torch.save({"state": dict(model.module.state_dict()), "kept": kept}, f"{path}.new")
    os.rename(f"{path}.new", path)
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / "next").write_text(f"{turn} {dist.get_world_size()} {step}")
        os.rename(folder / "next", current)
    dist.barrier()


def load_sharded(folder, model, optimizer):
    current = Path(folder) / "current"
    if not current.exists():
        raise FileNotFoundError(f"{current}: no checkpoint")
    words = current.read_text().split()
    if len(words) != 3:
        raise ValueError(f"{current} is incomplete")
    turn, count, step = words
    paths = [Path(folder) / f"turn{turn}-rank{rank}" for rank in range(int(count))]
    old = []
    for path in paths:
        try:
            old.append(torch.load(path, weights_only=True))
        except FileNotFoundError:
            raise
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise ValueError(f"{path}: {error}") from error

    def now(values, param):
        part = model.parts.get(id(param))
        if part is None or values[0].shape != old[0]["state"][names[id(param)]].shape:
            return values[0]
        return part.split(torch.cat(values)[: part.count].view(part.shape)).clone()

    names = {id(v): n for n, v in model.module.state_dict(keep_vars=True).items()}
    with torch.no_grad():
        for name, value in model.module.state_dict(keep_vars=True).items():
            names[id(value)] = name
            value.copy_(now([one["state"][name] for one in old], value))
    for name, param in model.module.named_parameters():
        names[id(param)] = name
        if name in old[0]["kept"]:
            optimizer.state[param] = {
                key: now([one["kept"][name][key] for one in old], param)
                for key in old[0]["kept"][name]
            }
    return int(step)
