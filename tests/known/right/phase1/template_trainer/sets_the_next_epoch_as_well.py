"""Sets the epoch before the pass, and that of the next pass as soon as this one is over."""


def train_epoch(model, loader, loss_fn, optimizer, epoch):
    set_epoch = getattr(loader.sampler, "set_epoch", lambda epoch: None)
    set_epoch(epoch)
    model.train()
    total, samples = 0.0, 0
    for inputs, targets in loader:
        total += train_step(model, (inputs, targets), loss_fn, optimizer) * len(targets)
        samples += len(targets)
    set_epoch(epoch + 1)
    return total / samples
