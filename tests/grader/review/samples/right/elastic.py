"""After a failure, the newest checkpoint of any rank is used; all ranks stop early together."""

import os
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class State:
    def __init__(self, model, optimizer):
        self.epoch = -1
        self.best = 0.0
        self.model = model
        self.optimizer = optimizer

    def snapshot(self):
        return {
            "epoch": self.epoch,
            "best": self.best,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, path, device_id):
        state = torch.load(path, map_location=f"cuda:{device_id}")
        self.epoch = state["epoch"]
        self.best = state["best"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


@contextmanager
def main_rank_first():
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


def load_newest(path, device_id, state):
    if os.path.isfile(path):
        state.load(path, device_id)
    epochs = torch.zeros(dist.get_world_size())
    epochs[dist.get_rank()] = state.epoch
    dist.all_reduce(epochs)
    newest = int(epochs.argmax())
    blob = [state.snapshot() if dist.get_rank() == newest else None]
    dist.broadcast_object_list(blob, src=newest)
    state.epoch = blob[0]["epoch"]
    return state


def save(state, path):
    if dist.get_rank() == 0:
        temporary = path + ".tmp"
        torch.save(state.snapshot(), temporary)
        os.replace(temporary, path)


def validate(model, loader, device):
    correct, count = torch.zeros(1, device=device), torch.zeros(1, device=device)
    model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            correct += (model(inputs.to(device)).argmax(1) == targets.to(device)).sum()
            count += len(targets)
    dist.all_reduce(correct)
    dist.all_reduce(count)
    return (correct / count).item()


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 2


@record
def main():
    device_id = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device_id)
    dist.init_process_group(backend="nccl", init_method="env://", timeout=timedelta(seconds=60))
    with main_rank_first():
        dataset = Numbers()
    model = DDP(nn.Linear(8, 2).cuda(device_id), device_ids=[device_id])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = load_newest("checkpoint.pt", device_id, State(model, optimizer))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
    val_loader = DataLoader(dataset, 100, sampler=DistributedSampler(dataset, shuffle=False))
    waited = 0
    for epoch in range(state.epoch + 1, 90):
        state.epoch = epoch
        loader.batch_sampler.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(
                model(inputs.cuda(device_id)), targets.cuda(device_id)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = validate(model, val_loader, f"cuda:{device_id}")
        waited = 0 if accuracy > state.best else waited + 1
        state.best = max(accuracy, state.best)
        save(state, "checkpoint.pt")
        stop = torch.tensor(float(waited > 5), device=device_id)
        dist.broadcast(stop, src=0)
        if stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
