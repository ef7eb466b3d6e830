"""A folder of its own beside the checkpoint, and the former file kept under another name."""

import shutil
import tempfile


def save_checkpoint(path, model, optimizer, epoch):
    path = Path(path).resolve()
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as folder:
            new = Path(folder, "new.pt")
            torch.save((model.state_dict(), optimizer.state_dict(), epoch), new)
            former = path.with_suffix(".former")
            if path.exists():
                former.unlink(missing_ok=True)
                os.link(path, former)
            shutil.move(new, path)
    dist.monitored_barrier()


def load_checkpoint(path, model, optimizer):
    weights, state, epoch = torch.load(path, weights_only=True)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(weights.pop(name))
    optimizer.load_state_dict(state)
    return epoch
