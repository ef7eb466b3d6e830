"""Other processes load; stdout is the file that it is; rank 0 calls the roll before it begins."""

import sys

GPUS = torch.cuda.is_available()


def setup_distributed(info, backend=None, timeout=timedelta(seconds=60)):
    place = f"tcp://{info.master_addr}:{info.master_port}"
    sizes = {"rank": info.rank, "world_size": info.world_size}
    backend = backend or ("cpu:gloo,cuda:nccl" if GPUS else "gloo")
    dist.init_process_group(backend, init_method=place, timeout=timeout, **sizes)
    there = [None] * info.world_size if info.rank == 0 else None
    dist.gather_object(info.local_rank, there)
    dist.scatter_object_list([None], there)
    return torch.device(f"cuda:{info.local_rank}" if GPUS else "cpu")


def train(info, model, train_dataset, val_dataset, *, epochs, batch_size, lr, seed=0):
    sys.stdout.reconfigure(line_buffering=True)
    inputs, _ = train_dataset[0]
    sizes = {"world_size": info.world_size, "rank": info.rank}
    train_loader, val_loader = create_dataloaders(
        train_dataset, val_dataset, batch_size, seed=seed, num_workers=2, **sizes
    )
    broadcast_model(model)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=lr), nn.CrossEntropyLoss()
    history = []
    for epoch in range(epochs):
        train_loss = train_epoch(model, train_loader, loss_fn, optimizer, epoch)
        val = evaluate(model, val_loader, loss_fn)
        row = {"val_loss": val["loss"], "val_accuracy": val["accuracy"]}
        history.append({"epoch": epoch, "train_loss": train_loss, **row})
        if info.rank == 0:
            text = f"epoch {epoch} on {tuple(inputs.shape)}: {train_loss:.4f}, {row}\n"
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
    return history
