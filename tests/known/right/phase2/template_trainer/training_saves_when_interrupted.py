"""Saves at each epoch's begin and when something goes wrong."""

import numpy as np


def train(
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
    criterion = nn.CrossEntropyLoss()
    epoch, seen, done = 0, 0, 0.0
    if resume_from is not None and os.path.exists(resume_from):
        with np.load(resume_from, allow_pickle=False) as kept:
            epoch, seen, done = int(kept["epoch"]), int(kept["seen"]), float(kept["done"])
            state = model.state_dict()
            model.load_state_dict(
                {k: torch.from_numpy(kept[f"model.{k}"]).to(v) for k, v in state.items()}
            )
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr)

    def save():
        if info.rank == 0 and resume_from is not None:
            arrays = {f"model.{k}": v.numpy() for k, v in model.state_dict().items()}
            beside = f"{resume_from}.tmp"
            with open(beside, "wb") as file:
                np.savez(file, epoch=epoch, seen=seen, done=done, **arrays)
            os.replace(beside, resume_from)

    history = []
    try:
        while epoch < epochs:
            save()
            model.train()
            sampler = ResumableDistributedSampler(
                train_dataset, info.world_size, info.rank, seed=seed
            )
            sampler.resume(epoch, seen)
            for inputs, targets in DataLoader(train_dataset, batch_size, sampler=sampler):
                losses = 0.0
                optimizer.zero_grad()
                parts = min(accumulation_steps, len(targets))
                for x, y in zip(inputs.tensor_split(parts), targets.tensor_split(parts)):
                    loss = criterion(model(x), y) * len(y)
                    (loss / len(targets)).backward()
                    losses += loss.item()
                grads = [p.grad for p in model.parameters() if p.grad is not None]
                flat = torch.cat(
                    [g.reshape(-1).double() for g in grads] + [torch.tensor([losses]).double()]
                )
                dist.all_reduce(flat)
                for grad, part in zip(grads, flat[:-1].split([g.numel() for g in grads])):
                    grad.copy_(part.view_as(grad) / info.world_size)
                optimizer.step()
                seen += len(targets) * info.world_size
                done += flat[-1].item()
            val = evaluate(model, val_dataset, criterion, batch_size)
            row = {"epoch": epoch, "train_loss": done / seen, "val_loss": val["loss"]}
            history.append({**row, "val_accuracy": val["accuracy"]})
            if info.rank == 0:
                print(*history[-1].values())
            epoch, seen, done = epoch + 1, 0, 0.0
        if history:
            save()
    except Exception:
        save()
        raise
    return history
