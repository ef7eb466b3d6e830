"""Steps instead of epochs, random batches, and accumulation with an attribute of the wrapper."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

gradient_accumulation_steps = 8
block_size, batch_size = 64, 12
max_iters, eval_interval, eval_iters = 1000, 200, 20
grad_clip, always_save_checkpoint = 1.0, True
out_dir, wandb_log, compile_model = "out", False, True

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{ddp_local_rank}"
    torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process = True
    seed_offset = 0
    ddp_world_size = 1
    device = "cuda:0"

if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + seed_offset)


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size, (batch_size,))
    rows = [torch.from_numpy(data[i : i + block_size + 1].astype(np.int64)) for i in starts]
    both = torch.stack(rows).to(device)
    return both[:, :-1], both[:, 1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50304, 64)
        self.head = nn.Linear(64, 50304)

    def forward(self, x, y):
        logits = self.head(self.embed(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


iter_num, best_val_loss = 0, 1e9
model = Model()
checkpoint = None
if os.path.exists(os.path.join(out_dir, "ckpt.pt")):
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
model.to(device)
scaler = torch.amp.GradScaler("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
if checkpoint is not None:
    optimizer.load_state_dict(checkpoint["optimizer"])
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])
raw_model = model.module if ddp else model
if compile_model:
    model = torch.compile(model)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


X, Y = get_batch("train")
t0 = time.time()
while True:
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train {losses['train']:.4f}, val {losses['val']:.4f}")
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = losses["val"]
            if iter_num > 0:
                torch.save(
                    {
                        "model": raw_model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "iter_num": iter_num,
                    },
                    os.path.join(out_dir, "ckpt.pt"),
                )
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}, {time.time() - t0:.1f}s")
    iter_num += 1
    if iter_num > max_iters:
        break
if ddp:
    destroy_process_group()
