"""The pipeline with objects as messages; the gradients are scaled when all are there."""


def pipeline_train_step(stage, microbatches, loss_fn, optimizer):
    rank, size = dist.get_rank(), dist.get_world_size()
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None

    entered, left = [], []
    for inputs, _ in microbatches:
        if rank > 0:
            inputs = from_rank(rank - 1)
            if inputs.dtype.is_floating_point:
                inputs.requires_grad = True
        entered.append(inputs)
        left.append(stage(inputs))
        if rank < size - 1:
            dist.send_object_list([left[-1].detach().clone()], dst=rank + 1)

    total, count = 0.0, 0
    for k in range(len(microbatches)):
        if rank == size - 1:
            targets = microbatches[k][1]
            loss = loss_fn(left[k], targets) * targets.shape[0]
            loss.backward()
            total += float(loss.detach())
            count += targets.shape[0]
        else:
            grad = from_rank(rank + 1)
            if grad is not None and left[k].requires_grad:
                left[k].backward(grad)
        if rank > 0:
            dist.send_object_list([entered[k].grad], dst=rank - 1)

    told = [total, count]
    dist.broadcast_object_list(told, src=size - 1)
    total, count = told
    for param in stage.parameters():
        if param.grad is not None:
            param.grad /= count
    optimizer.step()
    return total / count


def from_rank(source):
    message = [None]
    dist.recv_object_list(message, src=source)
    return message[0]
