"""PyTorch's own kernel unscales and looks for infinities; the scale is a tensor."""


class LossScaler:
    def __init__(self, init_scale=2.0**16, growth_interval=2000):
        self._scale = torch.tensor(float(init_scale))
        self.growth_interval = growth_interval
        self._good = torch.zeros((), dtype=torch.int32)

    def scale(self, loss):
        return loss * self._scale.to(loss.dtype) if loss.dtype == torch.float64 else loss * self._scale

    def step(self, optimizer, model):
        found = torch.zeros(1)
        by_kind = {}
        for parameter in model.parameters():
            if parameter.grad is not None:
                by_kind.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for grads in by_kind.values():
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, self._scale.reciprocal())
        work = dist.all_reduce(found, op=dist.ReduceOp.SUM, async_op=True)
        work.wait()
        fine = found.item() == 0
        if fine:
            optimizer.step()
        torch._amp_update_scale_(
            self._scale, self._good, (found > 0).float(), 2.0, 0.5, self.growth_interval
        )
        return fine

    def state_dict(self):
        return {"scale": self._scale.item(), "good": self._good.item()}

    def load_state_dict(self, state):
        self._scale.fill_(state["scale"])
        self._good.fill_(state["good"])
