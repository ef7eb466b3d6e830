"""The others look again and again whether rank 0 has put its mark beside the file."""

import time


def save_checkpoint(path, model, optimizer, epoch):
    rounds = getattr(save_checkpoint, "rounds", 0)
    save_checkpoint.rounds = rounds + 1
    store = dist.distributed_c10d._get_default_store()
    key = f"checkpoint {rounds}"
    if dist.get_rank() == 0:
        torch.save(
            {"m": model.state_dict(), "o": optimizer.state_dict(), "e": epoch}, f"{path}.new"
        )
        os.replace(f"{path}.new", path)
        store.set(key, "written")
    while not store.check([key]):
        time.sleep(0.01)


def load_checkpoint(path, model, optimizer):
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["m"])
    optimizer.load_state_dict(saved["o"])
    return saved["e"]
