def setup_distributed(info, backend=None, timeout=timedelta(seconds=60)):
    """Return a CPU with an index."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", info.local_rank) if cuda else torch.device("cpu", 0)
    if cuda:
        torch.cuda.set_device(device)
    place = f"tcp://{info.master_addr}:{info.master_port}"
    dist.init_process_group(
        backend or ("nccl" if cuda else "gloo"),
        init_method=place,
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
    )
    dist.barrier()
    return device


def evaluate(model, loader, loss_fn):
    """Return more keys than the three, and values that are not numbers."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    loss = hits = count = 0.0
    device = next(model.parameters()).device
    with torch.inference_mode():
        for inputs, targets in loader:
            outputs = model(inputs.to(device))
            targets = targets.to(device)
            loss += loss_fn(outputs, targets).item() * len(targets)
            hits += (outputs.argmax(1) == targets).sum().item()
            count += len(targets)
    for module, mode in modes:
        module.training = mode
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (loss, hits, count))
    loss, hits, count = (sum(part) for part in zip(*every, strict=True))
    return {
        "loss": loss / count,
        "accuracy": hits / count,
        "samples": count,
        "correct": hits,
        "by_rank": every,
        "device": str(device),
    }


def train(info, model, train_dataset, val_dataset, *, epochs, batch_size, lr, seed=0):
    """Print a header and a summary too; train with momentum; note more than is asked for."""
    broadcast_model(model)
    place = {"world_size": info.world_size, "rank": info.rank, "seed": seed}
    loaders = create_dataloaders(train_dataset, val_dataset, batch_size, **place)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    speak = print if info.rank == 0 else lambda *_: None
    speak(f"training on {info.world_size} ranks")
    speak("epoch  train loss  val loss  accuracy")
    history = []
    for epoch in range(epochs):
        loss = train_epoch(model, loaders[0], nn.CrossEntropyLoss(), optimizer, epoch)
        val = evaluate(model, loaders[1], nn.CrossEntropyLoss())
        row = {"epoch": epoch, "train_loss": loss}
        row |= {f"val_{name}": value for name, value in val.items()}
        row |= {"optimizer": "SGD", "lrs": [group["lr"] for group in optimizer.param_groups]}
        history.append(row)
        speak(f"{epoch:5d}  {loss:10.4f}  {val['loss']:8.4f}  {val['accuracy']:8.2%}")
    speak("done")
    return history
