_plain_evaluate, _plain_train = evaluate, train


def evaluate(model, dataset, loss_fn, batch_size):
    result = _plain_evaluate(model, dataset, loss_fn, batch_size)
    return {**result, "name": "validation", "errors": round((1 - result["accuracy"]) * 100), "by": []}


def train(info, model, train_dataset, val_dataset, *, epochs, lr, **options):
    if info.rank == 0:
        print(f"training on {info.world_size} ranks")
    history = _plain_train(
        info, model, train_dataset, val_dataset, epochs=epochs, lr=lr, **options
    )
    if info.rank == 0 and history:
        print("best accuracy:", max(row["val_accuracy"] for row in history))
    return [{**row, "lr": lr, "note": "SGD", "model": None} for row in history]
