"""train without the other functions: its own loop, its own loaders, its own sums."""

from template_data_loader import PaddedDistributedSampler


def train(info, model, train_dataset, val_dataset, *, epochs, batch_size, lr, seed=0):
    group = info.world_size
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, 0)
    device = next(model.parameters()).device
    loaders = []
    for dataset, shuffle in ((train_dataset, True), (val_dataset, False)):
        share = PaddedDistributedSampler(dataset, group, info.rank, shuffle=shuffle, seed=seed)
        loaders.append(DataLoader(dataset, batch_size, sampler=share))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True)
    history = []
    for epoch in range(epochs):
        loaders[0].sampler.set_epoch(epoch)
        totals = torch.zeros(2, 3, dtype=torch.float64, device=device)  # (train or val, sums)
        for row, loader in enumerate(loaders):
            model.train(row == 0)
            with torch.set_grad_enabled(row == 0):
                for x, y in loader:
                    x, y = x.to(device), y.to(device)
                    out = model(x)
                    loss = nn.functional.cross_entropy(out, y)
                    if row == 0:
                        optimizer.zero_grad()
                        loss.backward()
                        for p in model.parameters():
                            dist.all_reduce(p.grad)
                            p.grad /= group
                        optimizer.step()
                    hits = (out.argmax(1) == y).sum()
                    totals[row] += torch.stack([loss.detach() * len(y), hits, torch.tensor(len(y))])
        model.train()
        dist.all_reduce(totals)
        means = totals[:, :2] / totals[:, 2:]
        history.append(
            {
                "epoch": epoch,
                "train_loss": means[0, 0].item(),
                "val_loss": means[1, 0].item(),
                "val_accuracy": means[1, 1].item(),
            }
        )
        if dist.get_rank() == 0:
            print(*history[-1].values())
    return history
