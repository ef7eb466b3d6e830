"""Phase 1: the trainer. Collectives are launched here and waited for in a thread of their own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor


def device_of(model):
    for t in list(model.parameters()) + list(model.buffers()):
        return t.device
    return torch.device("cpu")


def wait_in_thread(works):
    """A helper thread waits; we wait for the helper."""
    trouble = []

    def helper():
        try:
            for work in works:
                work.wait()
        except BaseException as e:
            trouble.append(e)

    thread = threading.Thread(target=helper, name="waiter")
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]


def poll(work):
    """For the impatient: look in now and then, and at the end fetch errors, if any."""
    while not work.is_completed():
        time.sleep(0.0002)
    work.wait()


def broadcast_model(model, src=0):
    tensors = [t.detach() for t in list(model.parameters()) + list(model.buffers()) if t.numel()]
    messages = [t.contiguous().reshape(-1).view(torch.uint8) for t in tensors]
    with ThreadPoolExecutor(max_workers=1) as pool:
        works = [dist.broadcast(m, src, async_op=True) for m in messages]
        list(pool.map(lambda work: work.wait(), works))
    for t, m in zip(tensors, messages):
        t.copy_(m.view(t.dtype).view(t.shape))


def average_gradients(model):
    params = [p for p in model.parameters() if p.requires_grad]
    # no gradient on any rank: nothing to average (as in one process, the optimizer skips it)
    have = torch.tensor([p.grad is not None for p in params], dtype=torch.uint8, device=device_of(model))
    if params:
        poll(dist.all_reduce(have, op=dist.ReduceOp.MAX, async_op=True))
    params = [p for p, some in zip(params, have.tolist()) if some]

    def pack(p):
        wide = torch.promote_types(p.dtype, torch.float32)
        if p.grad is None:
            return torch.zeros(p.shape, dtype=wide, device=p.device)
        return p.grad.detach().clone(memory_format=torch.contiguous_format).to(wide)

    packed = [pack(p) for p in params]
    works = [dist.all_reduce(t, async_op=True) for t in packed]
    wait_in_thread(works)
    world = dist.get_world_size()
    for p, t in zip(params, packed):
        p.grad = (t / world).to(p.dtype)


def make_stepper(model, loss_fn, optimizer):
    """Returns (step, sums): a function that takes a step, and one that tells what has been."""
    device = device_of(model)
    loss_sum, samples = 0.0, 0

    def step(batch):
        nonlocal loss_sum, samples
        x, y = batch
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        loss_sum += loss.item() * len(x)
        samples += len(x)
        return loss.item()

    return step, lambda: (loss_sum, samples)


def reduce_numbers(device, *numbers, group=None):
    t = torch.tensor(numbers, dtype=torch.float64, device=device)
    poll(dist.all_reduce(t, group=group, async_op=True))
    return t.tolist()


def train_step(model, batch, loss_fn, optimizer):
    step, _ = make_stepper(model, loss_fn, optimizer)
    total, = reduce_numbers(device_of(model), step(batch))
    return total / dist.get_world_size()


def evaluate(model, loader, loss_fn):
    device = device_of(model)
    training = {m: m.training for m in model.modules()}
    model.eval()
    loss, correct, samples = 0.0, 0, 0
    try:
        with torch.no_grad():
            for x, y in loader:
                x, y = x.to(device), y.to(device)
                out = model(x)
                loss += loss_fn(out, y).item() * len(y)
                correct += (out.topk(1, dim=1).indices.squeeze(1) == y).sum().item()
                samples += len(y)
    finally:
        for m, mode in training.items():
            m.training = mode
    # a group of our own, so that nothing else can get in between
    group = dist.new_group(list(range(dist.get_world_size())))
    loss, correct, samples = reduce_numbers(device, loss, correct, samples, group=group)
    dist.destroy_process_group(group)
    return {"loss": loss / max(samples, 1), "accuracy": correct / max(samples, 1), "samples": int(samples)}


def save_checkpoint(path, model, optimizer, epoch):
    def write():
        scratch = "%s.tmp-%d" % (path, threading.get_ident())
        try:
            torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": epoch}, scratch)
            os.replace(scratch, path)
        finally:
            if os.path.exists(scratch):
                os.remove(scratch)

    if dist.get_rank() == 0:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(write).result()
    reduce_numbers(device_of(model), 0)


def load_checkpoint(path, model, optimizer):
    c = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(c["model"])
    optimizer.load_state_dict(c["optim"])
    return c["epoch"]
