"""The pipeline with one backward over all microbatches at once, and a closure for the optimizer."""


def pipeline_train_step(stage, microbatches, loss_fn, optimizer):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    everyone = dist.new_group()  # messages apart from those of the default group

    def closure():
        stage.zero_grad()
        arrived, outputs = [], []
        for x, _ in microbatches:
            if rank != 0:
                sizes = [None, None]
                dist.recv_object_list(sizes, src=rank - 1, group=everyone)
                x = torch.empty(sizes[0], dtype=sizes[1])
                dist.recv(x, rank - 1, group=everyone)
                x.requires_grad_(x.is_floating_point())
            arrived.append(x)
            outputs.append(stage(x))
            if rank != last:
                told = [tuple(outputs[-1].shape), outputs[-1].dtype]
                dist.send_object_list(told, dst=rank + 1, group=everyone)
                dist.send(outputs[-1].detach().contiguous(), rank + 1, group=everyone)
        loss = torch.zeros((), dtype=torch.float64)
        if rank == last:
            targets = [y for _, y in microbatches]
            counts = torch.tensor([float(len(y)) for y in targets])
            losses = torch.stack([loss_fn(o, y) for o, y in zip(outputs, targets)])
            mean = (losses * counts).sum() / counts.sum()
            mean.backward()
            loss += mean.detach()
        else:
            grads = [torch.empty(o.shape, dtype=o.dtype) for o in outputs]
            for grad in grads:
                dist.recv(grad, rank + 1, group=everyone)
            pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad]
            if pairs:
                torch.autograd.backward(*zip(*pairs))
        if rank != 0:
            for x in arrived:
                dist.send(x.grad.contiguous(), rank - 1, group=everyone)
        dist.broadcast(loss, src=last, group=everyone)
        return loss.item()

    return optimizer.step(closure)
