"""The whole parameter is one tensor for ever, whose memory is taken and given back by hooks."""


class _Whole:
    """A parameter's part, and a leaf that is the whole parameter while it has memory."""

    def __init__(self, parameter, dtype):
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        self.shape, self.numel = parameter.shape, parameter.numel()
        self.size = (self.numel + self.ranks - 1) // self.ranks
        flat = parameter.detach().reshape(-1)
        begin, end = self.rank * self.size, (self.rank + 1) * self.size
        part = torch.zeros(self.size, dtype=flat.dtype)
        part[: max(0, min(end, self.numel) - begin)] = flat[begin:end]
        self.part = nn.Parameter(part, requires_grad=parameter.requires_grad)
        self.memory = torch.empty(self.size * self.ranks, dtype=dtype or part.dtype)
        self.leaf = self.memory[: self.numel].view(self.shape)
        self.leaf.requires_grad_(parameter.requires_grad)
        if parameter.requires_grad:
            self.leaf.register_post_accumulate_grad_hook(self.reduce)
        self.bytes = self.memory.untyped_storage().size()
        self.give_back()

    def give_back(self, *_):
        self.memory.untyped_storage().resize_(0)

    @torch.no_grad()
    def take(self, *_):
        storage = self.memory.untyped_storage()
        if storage.size() == 0:
            storage.resize_(self.bytes)
            with torch.autograd._unsafe_preserve_version_counter(self.memory):
                dist.all_gather_into_tensor(self.memory, self.part.to(self.memory.dtype))

    @torch.no_grad()
    def reduce(self, leaf):
        grad, leaf.grad = leaf.grad, None
        flat = torch.zeros(self.size * self.ranks, dtype=self.part.dtype)
        flat[: self.numel] = grad.reshape(-1)
        del grad
        flat /= self.ranks
        own = torch.empty(self.size, dtype=self.part.dtype)
        dist.reduce_scatter_tensor(own, flat)
        self.part.grad = own if self.part.grad is None else self.part.grad + own


class FullyShardedModule(nn.Module):
    def __init__(self, module, *, compute_dtype=None):
        super().__init__()
        self.module = module
        self.wholes = {}
        self.compute_dtype = compute_dtype
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        by_old = {}
        for owner in module.modules():
            mine = []
            for name, parameter in owner._parameters.items():
                if parameter is None or parameter.dim() < 2:
                    continue
                if parameter not in by_old:
                    by_old[parameter] = _Whole(parameter, compute_dtype)
                    self.wholes[by_old[parameter].part] = by_old[parameter]
                mine.append((name, by_old[parameter]))
            for name, whole in mine:
                owner._parameters[name] = whole.part
            if mine or any(p is not None for p in owner._parameters.values()):
                self._hook(owner, mine)

    def _hook(self, owner, mine):
        def before(_, args, options):
            kinds = {p.dtype for p in owner._parameters.values() if p is not None}
            for name, whole in mine:
                whole.take()
                owner.__dict__[name] = whole.leaf
            if self.compute_dtype is not None:
                dtype = self.compute_dtype if mine else kinds.pop()
                for name, parameter in owner._parameters.items():
                    if mine and parameter is not None and parameter not in self.wholes:
                        owner.__dict__[name] = parameter.to(dtype)
                move = lambda x: (  # noqa: E731
                    x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
                )
                args, options = tuple(map(move, args)), {k: move(v) for k, v in options.items()}
            return args, options

        def after(_, args, output):
            for name in owner._parameters:
                owner.__dict__.pop(name, None)
            for _, whole in mine:
                whole.give_back()
            if isinstance(output, Tensor) and output.requires_grad and mine:
                output.register_hook(lambda grad: [w.take() for _, w in mine] and None)

        owner.register_forward_pre_hook(before, with_kwargs=True)
        owner.register_forward_hook(after)
        if mine:
            owner.register_full_backward_hook(lambda *_: [w.give_back() for _, w in mine] and None)

    def forward(self, *args, **options):
        return self.module(*args, **options)

    def finish(self):
        for whole in self.wholes.values():
            whole.give_back()
        for parameter in self.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                if parameter not in self.wholes:
                    dist.all_reduce(parameter.grad)
                    parameter.grad.div_(dist.get_world_size())

    def full_state_dict(self):
        state = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            if value in self.wholes:
                whole = self.wholes[value]
                found = torch.empty(whole.size * whole.ranks, dtype=value.dtype)
                dist.all_gather_into_tensor(found, value.detach())
                value = found[: whole.numel].view(whole.shape)
            state[name] = value.detach().clone()
        return state
