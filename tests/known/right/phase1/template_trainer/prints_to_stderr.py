"""train says how it goes on stderr, where launchers put what a job says of itself."""

import sys


def train(info, model, train_dataset, val_dataset, *, epochs, batch_size, lr, seed=0):
    broadcast_model(model)
    loaders = create_dataloaders(
        train_dataset,
        val_dataset,
        batch_size,
        world_size=info.world_size,
        rank=info.rank,
        seed=seed,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr)
    history = []
    for epoch in range(epochs):
        loss = train_epoch(model, loaders[0], nn.functional.cross_entropy, optimizer, epoch)
        val = evaluate(model, loaders[1], nn.functional.cross_entropy)
        row = {"epoch": epoch, "train_loss": loss, "val_loss": val["loss"]}
        history.append({**row, "val_accuracy": val["accuracy"]})
        if info.rank == 0:
            print(f"[{epoch + 1}/{epochs}] loss {loss:.3f}", file=sys.stderr)
    return history
