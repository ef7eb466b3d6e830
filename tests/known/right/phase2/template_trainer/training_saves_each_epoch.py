"""A file an epoch, as JSON, and the order of an epoch made without a sampler class.

Which rank is gone is told by its connection, and by a counter of failures in the store.
"""

import json
import tempfile
import time


def train(info, *args, **options):
    try:
        return _train(info, *args, **options)
    except RuntimeError:
        store = dist.distributed_c10d._get_default_store()
        store.add(f"failures of {info.rank}", 1)
        time.sleep(2)
        others = [r for r in range(info.world_size) if not store.add(f"failures of {r}", 0)]
        broken = [r for r in others if not _connected(r)]
        if broken:
            text = f"rank {info.rank} has no connection to rank {broken[0]} any more"
            raise RuntimeError(text) from None
        raise


def _connected(rank):
    try:
        dist.isend(torch.zeros(1, dtype=torch.uint8), rank, tag=9)
    except RuntimeError:
        return False
    return True


def _train(
    info,
    model,
    train_dataset,
    val_dataset,
    *,
    epochs,
    batch_size,
    lr,
    seed=0,
    accumulation_steps=1,
    resume_from=None,
):
    start = 0
    if resume_from is not None and os.path.exists(resume_from):
        with open(resume_from, encoding="utf-8") as file:
            saved = json.load(file)
        start = saved["epochs done"]
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(torch.tensor(saved["model"][name], dtype=tensor.dtype))
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    loss_fn = nn.CrossEntropyLoss()
    history = []
    for epoch in range(start, epochs):
        model.train()
        total = torch.zeros(2, dtype=torch.float64)
        for batch in _batches(train_dataset, info, batch_size, seed, epoch):
            optimizer.zero_grad()
            for inputs, targets in _parts(batch, accumulation_steps):
                loss = loss_fn(model(inputs), targets)
                (loss * len(targets) / len(batch[1]) / info.world_size).backward()
                total += torch.tensor([loss.item() * len(targets), len(targets)])
            for param in model.parameters():
                if param.requires_grad:
                    dist.all_reduce(param.grad)
            optimizer.step()
        dist.all_reduce(total)
        if info.rank == 0 and resume_from is not None:
            _write(resume_from, model, epoch + 1)
        val = evaluate(model, val_dataset, loss_fn, batch_size)
        row = {"epoch": epoch, "train_loss": (total[0] / total[1]).item()}
        history.append({**row, "val_loss": val["loss"], "val_accuracy": val["accuracy"]})
        if info.rank == 0:
            print(history[-1])
    return history


def _batches(dataset, info, batch_size, seed, epoch):
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(dataset), generator=generator).tolist()
    order += order[: -len(order) % info.world_size]
    mine = order[info.rank :: info.world_size]
    for begin in range(0, len(mine), batch_size):
        samples = [dataset[index] for index in mine[begin : begin + batch_size]]
        yield torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def _parts(batch, count):
    return zip(
        batch[0].tensor_split(min(count, len(batch[0]))),
        batch[1].tensor_split(min(count, len(batch[1]))),
    )


def _write(path, model, done):
    content = {"model": {k: v.tolist() for k, v in model.state_dict().items()}, "epochs done": done}
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
