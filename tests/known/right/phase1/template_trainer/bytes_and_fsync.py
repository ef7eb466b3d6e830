"""The checkpoint through memory, written and synchronised by hand, then renamed."""

import io


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        buffer = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), epoch], buffer)
        beside = f"{path}.{os.getpid()}.tmp"
        with open(beside, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer):
    with open(path, "rb") as file:
        weights, state, epoch = torch.load(io.BytesIO(file.read()), weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    return epoch
