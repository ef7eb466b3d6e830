"""Evaluates by gathering a row of numbers from each rank as an object; inference mode."""


@torch.inference_mode()
def evaluate(model, loader, loss_fn):
    modes = [(module, module.training) for module in model.modules()]
    rows = [[0.0, 0, 0]]
    model.eval()
    try:
        device = next(model.parameters()).device
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            hits = outputs.argmax(-1).eq(targets).sum()
            rows.append([loss_fn(outputs, targets).item() * len(inputs), int(hits), len(inputs)])
    finally:
        for module, mode in modes:
            module.train(mode) if not list(module.children()) else setattr(module, "training", mode)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, rows)
    loss, hits, count = (sum(column) for column in zip(*(row for part in everyone for row in part)))
    return {"loss": loss / count, "accuracy": hits / count, "samples": count}


def train_epoch(model, loader, loss_fn, optimizer, epoch):
    model.train()
    if callable(getattr(loader.sampler, "set_epoch", None)):
        loader.sampler.set_epoch(epoch)
    seen = [(train_step(model, batch, loss_fn, optimizer), len(batch[0])) for batch in loader]
    return sum(loss * n for loss, n in seen) / sum(n for _, n in seen)
