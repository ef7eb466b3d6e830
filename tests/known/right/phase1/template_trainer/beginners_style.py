# no types, no helpers, everything spelled out


def read_rank_info(environ):
    if "RANK" in environ or "WORLD_SIZE" in environ:
        if "RANK" not in environ:
            raise ValueError("RANK is missing")
        if "WORLD_SIZE" not in environ:
            raise ValueError("WORLD_SIZE is missing")
        keys = ["RANK", "WORLD_SIZE", "LOCAL_RANK"]
        addr = "127.0.0.1"
    elif "SLURM_PROCID" in environ or "SLURM_NTASKS" in environ:
        if "SLURM_PROCID" not in environ:
            raise ValueError("SLURM_PROCID is missing")
        if "SLURM_NTASKS" not in environ:
            raise ValueError("SLURM_NTASKS is missing")
        keys = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"]
        addr = ""
        inside = False
        skip = False
        for c in environ.get("SLURM_JOB_NODELIST", "127.0.0.1"):
            if c == "[":
                inside = True
                skip = False
            elif c == "]":
                inside = False
                skip = False
            elif inside and c in ",-":
                skip = True
            elif c == ",":
                break
            elif not skip:
                addr = addr + c
    else:
        keys = []
        addr = "127.0.0.1"
    numbers = [0, 1, 0]
    for i in range(len(keys)):
        if keys[i] in environ:
            try:
                numbers[i] = int(environ[keys[i]])
            except ValueError:
                raise ValueError(keys[i] + " is not an integer")
    port = 29500
    if "MASTER_PORT" in environ:
        try:
            port = int(environ["MASTER_PORT"])
        except ValueError:
            raise ValueError("MASTER_PORT is not an integer")
    if "MASTER_ADDR" in environ:
        addr = environ["MASTER_ADDR"]
    if numbers[0] < 0 or numbers[0] >= numbers[1]:
        raise ValueError(keys[0] + " is outside of the world")
    return RankInfo(numbers[0], numbers[1], numbers[2], addr, port)


def train_step(model, batch, loss_fn, optimizer):
    x = batch[0]
    y = batch[1]
    for p in model.parameters():
        dev = p.device
    x = x.to(dev)
    y = y.to(dev)
    optimizer.zero_grad()
    out = model(x)
    loss = loss_fn(out, y)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    t = torch.tensor([loss.item()])
    dist.all_reduce(t)
    return (t / dist.get_world_size()).item()


def train_epoch(model, loader, loss_fn, optimizer, epoch):
    model.train()
    try:
        loader.sampler.set_epoch(epoch)
    except AttributeError:
        pass
    losses = []
    sizes = []
    for batch in loader:
        losses.append(train_step(model, batch, loss_fn, optimizer))
        sizes.append(len(batch[0]))
    s = 0
    for i in range(len(losses)):
        s = s + losses[i] * sizes[i]
    return s / sum(sizes)


def evaluate(model, loader, loss_fn):
    was_training = model.training
    model.eval()
    for p in model.parameters():
        dev = p.device
    loss_sum = 0
    right = 0
    n = 0
    torch.set_grad_enabled(False)
    for x, y in loader:
        x = x.to(dev)
        y = y.to(dev)
        out = model(x)
        loss_sum = loss_sum + loss_fn(out, y).item() * len(y)
        right = right + (out.argmax(1) == y).sum().item()
        n = n + len(y)
    torch.set_grad_enabled(True)
    if was_training:
        model.train()
    a = torch.tensor(float(loss_sum), dtype=torch.float64)
    b = torch.tensor(float(right))
    c = torch.tensor(float(n))
    dist.all_reduce(a)
    dist.all_reduce(b)
    dist.all_reduce(c)
    return {"loss": (a / c).item(), "accuracy": (b / c).item(), "samples": int(c.item())}
