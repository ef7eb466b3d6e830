"""All of it at once: asynchronous handles, waited for in the end."""


def broadcast_model(model, src=0):
    handles = [
        dist.broadcast(tensor.data, src, async_op=True)
        for tensor in (*model.parameters(), *model.buffers())
    ]
    for handle in handles:
        handle.wait()


def average_gradients(model):
    pending = []
    for param in model.parameters():
        if param.requires_grad:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            pending.append((param, dist.all_reduce(param.grad, async_op=True)))
    for param, handle in pending:
        handle.wait()
        param.grad.div_(dist.get_world_size())


def evaluate(model, loader, loss_fn):
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    sums = [torch.zeros((), dtype=torch.float64) for _ in range(3)]
    with torch.no_grad():
        for inputs, targets in loader:
            outputs = model(inputs)
            sums[0] += loss_fn(outputs, targets) * len(targets)
            sums[1] += (outputs.argmax(1) == targets).sum()
            sums[2] += len(targets)
    handles = [dist.all_reduce(part, async_op=True) for part in sums]
    for module, mode in modes:
        module.training = mode
    for handle in handles:
        handle.wait()
    loss, correct, samples = (part.item() for part in sums)
    return {"loss": loss / samples, "accuracy": correct / samples, "samples": int(samples)}
