"""Folders with running numbers; a symbolic link names the current one; bytes, fsync."""

import io
import shutil


def _put(path, data):
    hidden = path.parent / ("." + path.name)
    with open(hidden, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)


def save_sharded(folder, model, optimizer, step):
    folder = Path(folder)
    number = [0]
    if dist.get_rank() == 0:
        known = [int(p.name.split("-")[1]) for p in folder.glob("save-*")]
        number = [max(known, default=0) + 1]
        (folder / f"save-{number[0]}").mkdir(parents=True)
    dist.broadcast_object_list(number, src=0)
    place = folder / f"save-{number[0]}"
    buffer = io.BytesIO()
    index = {param: i for i, param in enumerate(model.parameters())}
    moments = {index[param]: dict(state) for param, state in optimizer.state.items()}
    torch.save({"weights": model.module.state_dict(), "moments": moments}, buffer)
    _put(place / f"{dist.get_rank()}.bin", buffer.getvalue())
    dist.barrier()
    if dist.get_rank() == 0:
        content = {"step": step, "count": dist.get_world_size()}
        _put(place / "complete.json", json.dumps(content).encode())
        new = folder / ".latest"
        new.unlink(missing_ok=True)
        new.symlink_to(place.name)
        os.replace(new, folder / "latest")
        for old in folder.glob("save-*"):
            if old != place:
                shutil.rmtree(old)
    dist.barrier()


def load_sharded(folder, model, optimizer):
    link = Path(folder) / "latest"
    if not link.is_symlink():
        raise FileNotFoundError(f"there is no {link}")
    mark = Path(folder) / os.readlink(link) / "complete.json"
    try:
        about = json.loads(mark.read_text())
        step, count = about["step"], about["count"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{mark} can't be read") from None
    pieces = []
    for rank in range(count):
        path = mark.parent / f"{rank}.bin"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing")
        try:
            pieces.append(torch.load(io.BytesIO(path.read_bytes()), weights_only=True))
        except Exception as error:
            raise ValueError(f"{path} is damaged") from error

    def fitted(tensors, param):
        one = model._sharded.get(param)
        if one is None or tensors[0].dim() == 0:
            return tensors[0].clone()
        return one.cut(torch.cat(tensors)[: one.numel])

    with torch.no_grad():
        for name, value in model.module.state_dict(keep_vars=True).items():
            value.copy_(fitted([piece["weights"][name] for piece in pieces], value))
        for i, param in enumerate(model.parameters()):
            if i in pieces[0]["moments"]:
                optimizer.state[param] = {
                    key: fitted([piece["moments"][i][key] for piece in pieces], param)
                    for key in pieces[0]["moments"][i]
                }
    return step
