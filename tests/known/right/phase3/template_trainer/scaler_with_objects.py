"""A scaler whose ranks exchange their findings as objects, with an exponent as its state."""


class LossScaler:
    def __init__(self, init_scale=2.0**16, growth_interval=2000):
        self.value, self.interval, self.good = float(init_scale), growth_interval, 0

    def scale(self, loss):
        return self.value * loss

    def step(self, optimizer, model):
        inverse = 1.0 / self.value
        bad = False
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad = param.grad * inverse
                    bad |= bool((~torch.isfinite(param.grad)).any())
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, bad)
        if any(found):
            self.value *= 0.5
            self.good = 0
            return False
        optimizer.step()
        self.good += 1
        if self.good % self.interval == 0:
            self.value *= 2.0
            self.good = 0
        return True

    def state_dict(self):
        return {"exponent": math.log2(self.value), "good": self.good}

    def load_state_dict(self, state):
        self.value, self.good = 2.0 ** state["exponent"], int(state["good"])
