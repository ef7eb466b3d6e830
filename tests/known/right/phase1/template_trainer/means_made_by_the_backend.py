"""Has the process group divide, and waits for all means in the end."""


def average_gradients(model):
    pending = []
    for param in model.parameters():
        if param.requires_grad:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            pending.append(dist.all_reduce(param.grad, op=dist.ReduceOp.AVG, async_op=True))
    for work in pending:
        work.wait()


def train_step(model, batch, loss_fn, optimizer):
    inputs, targets = batch
    device = next(model.parameters()).device
    optimizer.zero_grad()
    loss = loss_fn(model(inputs.to(device)), targets.to(device))
    mean = loss.detach().clone()
    mean_made = dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op=True)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    mean_made.wait()
    return mean.item()
