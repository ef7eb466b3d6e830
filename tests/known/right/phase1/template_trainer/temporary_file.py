"""A temporary file of the standard library; the others wait for rank 0's word."""

import tempfile


def save_checkpoint(path, model, optimizer, epoch):
    done = torch.zeros(1)
    if dist.get_rank() == 0:
        folder = os.path.dirname(os.path.abspath(path))
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as file:
            torch.save(
                dict(epoch=torch.tensor(epoch), model=model.state_dict(), opt=optimizer.state_dict()),
                file,
            )
        os.rename(file.name, path)
        done += 1
    dist.broadcast(done, src=0)


def load_checkpoint(path, model, optimizer):
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["opt"])
    return int(saved["epoch"])
