"""Phase 1, trainer. Short on purpose."""

import re

import torch.nn.functional as F


def read_rank_info(environ):
    def i(k, d=None):
        try: return int(environ.get(k, d))
        except (TypeError, ValueError): raise ValueError(f"{k} is missing or no integer") from None
    host = re.sub(r"\[(\w+)[^]]*\]", r"\1", re.match(r"(?:\[[^]]*\]|[^,\[])*", environ.get("SLURM_JOB_NODELIST", ""))[0]) or "127.0.0.1"
    for R, W, L, h in (("RANK", "WORLD_SIZE", "LOCAL_RANK", "127.0.0.1"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", host)):
        if R in environ or W in environ:
            x = RankInfo(i(R), i(W), i(L, 0), environ.get("MASTER_ADDR", h), i("MASTER_PORT", 29500))
            if not 0 <= x.rank < x.world_size: raise ValueError(f"{R}={x.rank} is outside the world of {W}={x.world_size}")
            return x
    return RankInfo(0, 1, 0, "127.0.0.1", 29500)


def setup_distributed(info, backend=None, timeout=timedelta(seconds=60)):
    if c := torch.cuda.is_available(): torch.cuda.set_device(info.local_rank)
    dist.init_process_group(backend or ("nccl" if c else "gloo"), init_method=f"tcp://{info.master_addr}:{info.master_port}", rank=info.rank, world_size=info.world_size, timeout=timeout)
    dist.barrier(); return torch.device("cuda", info.local_rank) if c else torch.device("cpu")


def cleanup_distributed(): dist.is_initialized() and dist.destroy_process_group()


@torch.no_grad()
def broadcast_model(model, src=0):
    for t in (*model.parameters(), *model.buffers()):
        b = t.detach().contiguous().reshape(-1).view(torch.uint8); dist.broadcast(b, src); t.copy_(b.view(t.dtype).view(t.shape))


@torch.no_grad()
def average_gradients(model):
    for p in (p for p in model.parameters() if p.requires_grad):
        g = torch.zeros_like(p) if p.grad is None else p.grad
        w = g.to(torch.promote_types(g.dtype, torch.float32), memory_format=torch.contiguous_format, copy=True); dist.all_reduce(w, dist.ReduceOp.AVG); p.grad = g.copy_(w)


def _step(model, batch, loss_fn, optimizer):
    x, y = (t.to(_dev(model)) for t in batch); optimizer.zero_grad(); loss = loss_fn(model(x), y)
    loss.backward(); average_gradients(model); optimizer.step(); return loss.detach().double(), len(x)


def _dev(model): return next((p.device for p in model.parameters()), torch.device("cpu"))


def _sum(model, *v): t = torch.tensor(v, dtype=torch.float64, device=_dev(model)); dist.all_reduce(t); return t.tolist()


def train_step(model, batch, loss_fn, optimizer):
    s, n = _sum(model, _step(model, batch, loss_fn, optimizer)[0], 1); return s / n


def train_epoch(model, loader, loss_fn, optimizer, epoch):
    for s in (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)):
        if hasattr(s, "set_epoch"): s.set_epoch(epoch); break
    model.train(); z = [(l * n, n) for l, n in (_step(model, b, loss_fn, optimizer) for b in loader)]
    s, n = _sum(model, sum(a for a, _ in z), sum(b for _, b in z)); return s / n if n else 0.0


@torch.no_grad()
def evaluate(model, loader, loss_fn):
    was = [(m, m.training) for m in model.modules()]; model.eval(); L = A = N = 0
    try:
        for b in loader: x, y = (t.to(_dev(model)) for t in b); o = model(x); L += loss_fn(o, y).double() * len(x); A += (o.argmax(1) == y).sum(); N += len(x)
    finally:
        for m, t in was: m.training = t
    L, A, N = _sum(model, L, A, N); return {"loss": L / max(N, 1), "accuracy": A / max(N, 1), "samples": int(N)}


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0: torch.save([model.state_dict(), optimizer.state_dict(), epoch], f"{path}.tmp"); os.replace(f"{path}.tmp", path)
    dist.barrier()


def load_checkpoint(path, model, optimizer):
    m, o, e = torch.load(path, map_location="cpu", weights_only=True); model.load_state_dict(m); optimizer.load_state_dict(o); return e


def train(info, model, train_dataset, val_dataset, *, epochs, batch_size, lr, seed=0):
    broadcast_model(model); opt, hist = torch.optim.SGD(model.parameters(), lr), []
    tr, va = create_dataloaders(train_dataset, val_dataset, batch_size, world_size=info.world_size, rank=info.rank, seed=seed)
    for e in range(epochs):
        l = train_epoch(model, tr, F.cross_entropy, opt, e); v = evaluate(model, va, F.cross_entropy); hist += [dict(epoch=e, train_loss=l, val_loss=v["loss"], val_accuracy=v["accuracy"])]
        if not info.rank: print(*hist[-1].values())
    return hist
