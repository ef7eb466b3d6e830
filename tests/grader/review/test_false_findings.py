"""Correct scripts of the kinds that a review must not mistake for wrong ones."""

import pytest

from gradsync.review import review, review_text

START = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def step(model, x, optimizer):
    model(x).sum().backward()
    optimizer.step()

"""
END = "\ndist.destroy_process_group()\n"
TRAINS = """
def train(me, epochs):
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(epochs):
        step(model, torch.ones(1, 2), optimizer)
        if {test}:
            print(epoch)
            torch.save(model.module.state_dict(), "model.pt")
"""

RANK_ENTERS = {
    "as the rank of the process group": TRAINS.format(test="me < 1")
    + """
def main(me, n):
    dist.init_process_group("gloo", rank=me, world_size=n)
    train(me, 3)

main(int(input()), int(input()))
""",
    "as an argument of a process": TRAINS.format(test="not me")
    + """
from multiprocessing import Process

def main(number, n):
    dist.init_process_group("gloo", "file:///tmp/meet", world_size=n, rank=number)
    train(number, 3)
    dist.destroy_process_group()

workers = [Process(target=print)]
for k in range(torch.cuda.device_count()):
    worker = Process(target=main, args=(k, torch.cuda.device_count()))
    worker.start()
""",
    "as the rank of a mesh": """
dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
"""
    + TRAINS.format(test="me == 0")
    + "\ntrain(mesh.get_rank(), 3)\n",
    "as the index of a device": """
dist.init_process_group("gloo")
device = torch.device("cuda", dist.get_rank())
here = torch.device(f"cuda:{dist.get_rank()}")
"""
    + TRAINS.format(test="here.index == 0")
    + "\ntrain(0, 3)\n",
    "as a global that a function sets": TRAINS.format(test="NUMBER == 0")
    + """
NUMBER = int(os.environ.get("SLURM_PROCID", -1))

def begin():
    global NUMBER
    if NUMBER < 0:
        NUMBER = 0
        return
    dist.init_process_group("gloo", rank=NUMBER, world_size=int(os.environ["SLURM_NTASKS"]))

begin()
train(0, 3)
""",
    "as one operand of `or` in an expression": """
import wandb
dist.init_process_group("gloo")
quiet = os.environ.get("QUIET") == "1" or dist.get_rank() > 0
log = None if quiet else wandb.init(project="p")
dist.get_rank() == 0 and wandb.init(project="q")
"""
    + TRAINS.format(test="not quiet")
    + "\ntrain(0, 3)\n",
}
CONDITIONS = {
    "one condition makes the other one irrelevant": """
dist.init_process_group("gloo")

def evaluate(everywhere, x):
    chief = dist.get_rank() == 0
    if not (everywhere or chief):
        return
    if everywhere:
        dist.all_reduce(x)

evaluate(len(sys.argv) > 1, torch.ones(1))
""",
    "the other branch calls a function that can't be read": """
from elsewhere import follow_along
dist.init_process_group("gloo")

def lead(x):
    dist.broadcast(x, 0)

if dist.get_rank() == 0:
    lead(torch.ones(1))
else:
    follow_along(torch.ones(1))
""",
    "both branches iterate over the same values": """
from tqdm import tqdm
dist.init_process_group("gloo")
rounds = range(int(sys.argv[1]))
shown = tqdm(rounds) if dist.get_rank() == 0 else rounds
for r in shown:
    dist.barrier()
""",
    "the length of a dict does not depend on samples": """
dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))
for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
    totals = {"sum": x.sum(), "squares": (x * x).sum()}
    for name, total in totals.items():
        dist.all_reduce(total)
""",
    "the length of a list does not depend on samples": """
dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))
parts = []
for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
    parts.append(x.sum())
for part in parts:
    dist.all_reduce(part)
""",
    "a call without the argument takes the other branch": """
dist.init_process_group("gloo")

def checkpoint(path, state=None):
    if state is None:
        return torch.load(path, map_location="cpu")
    torch.save(state, path)

state = checkpoint("model.pt")
"""
    + TRAINS.format(test="dist.get_rank() == 0")
    + "\ntrain(0, 3)\n",
}
MODES = {
    "a branch without a process group": TRAINS.format(test="dist.get_rank() == 0")
    + """
def alone():
    model = nn.Linear(2, 1).to("cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), shuffle=True):
        step(model, x, optimizer)
        print("step")
    torch.save(model.state_dict(), "model.pt")

def together():
    dist.init_process_group("gloo")
    train(0, 3)

if "--together" in sys.argv:
    together()
else:
    alone()
""",
    "a condition with the same meaning later": """
n = int(os.environ["WORLD_SIZE"])
if n > 1:
    dist.init_process_group("gloo")
"""
    + TRAINS.format(test="n == 1 or dist.get_rank() == 0")
    + """
if n <= 1:
    print("one process")
    torch.save({}, "start.pt")
train(0, 3)
""",
}
RULES_TOO_EARLY = {
    "DDP016: all ranks of the branch leave": """
dist.init_process_group("gloo")

def share(text):
    if not dist.is_initialized():
        if dist.get_rank() == 0:
            return text
        raise RuntimeError("there is no process group")
    texts = [text]
    dist.broadcast_object_list(texts)
    return texts[0]
""",
    "DDP016: a function gathers what the ranks decide by": """
def gather_all(number):
    if dist.get_world_size() == 1:
        return [number]
    numbers = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(numbers, torch.tensor([float(number)]))
    return [n.item() for n in numbers]

dist.init_process_group("gloo")
bad = 0
while True:
    if dist.get_rank() == 0 and os.path.exists("bad"):
        bad += 1
    if max(gather_all(bad)) > 3:
        break
""",
    "DDP015: another item of a dict is the rank": """
settings = vars(sys.modules["__main__"])
settings["rank"] = int(os.environ["RANK"])
dist.init_process_group("gloo")
for epoch in range(settings["epochs"]):
    dist.barrier()
""",
    "DDP017: an error of memory ends the loop": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
try:
    for step in range(10):
        model(torch.ones(1, 2)).sum().backward()
except torch.cuda.OutOfMemoryError:
    print("this size does not fit")
""",
    "DDP015: all ranks make all groups": """
dist.init_process_group("gloo")
mine = None
for first in range(0, dist.get_world_size(), 2):
    group = dist.new_group([first, first + 1])
    if first <= dist.get_rank() < first + 2:
        mine = group
""",
    "DDP017: an error of memory ends the program": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
try:
    model(torch.ones(1, 2)).sum().backward()
except torch.cuda.OutOfMemoryError:
    print("use a smaller batch")
    raise
""",
    "DDP015: the other ranks go on after the branch": """
dist.init_process_group("gloo")

def end():
    dist.barrier()

if dist.get_rank() == 0:
    print("done")
    end()
    sys.exit(0)
end()
""",
    "DDP015: each rank has a loader in a list": """
def work(rank, loaders):
    dist.init_process_group("gloo", "file:///tmp/meet", rank=rank, world_size=2)
    model = DistributedDataParallel(nn.Linear(2, 1))
    for x in loaders[rank]:
        model(x).sum().backward()
    dist.destroy_process_group()

torch.multiprocessing.spawn(work, args=([range(2), range(2)],), nprocs=2)
""",
    "DDP005: one epoch": """
dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))
model = DistributedDataParallel(nn.Linear(2, 1))
loader = DataLoader(data, sampler=DistributedSampler(data))
for epoch in range(1):
    for (x,) in loader:
        model(x).sum().backward()
""",
    "DDP009: the number of a device is the rank": """
def save(run, model):
    if run.gpu_id == 0:
        torch.save(model.state_dict(), "model.pt")

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
save(sys.modules["run"], model.module)
""",
    "DDP009: an object has rank 0 before it is set": """
class Place:
    def __init__(self):
        self.rank = 0

    def set(self, rank):
        self.rank = rank

place = Place()

def save(model):
    if place.rank == 0:
        torch.save(model.state_dict(), "model.pt")

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
save(model.module)
""",
    "DDP010: one more process evaluates": """
from torch.multiprocessing import Process
from torchvision.datasets import MNIST

def work(rank, many):
    dist.init_process_group("gloo", "file:///tmp/meet", rank=rank, world_size=many)
    DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

def evaluate():
    return MNIST("data", download=True)

Process(target=evaluate).start()
for number in range(2):
    Process(target=work, args=(number, 2)).start()
""",
    "DDP040: a sum on the rank that prints": """
dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))
model = DistributedDataParallel(nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
good = torch.zeros(())
with torch.no_grad():
    for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        good += (model(x) > 0).sum()
dist.reduce(good, dst=0)
if dist.get_rank() == 0:
    print(good)
""",
    "DDP040: a sum in one of the modes": """
def validate(model, loader, everywhere):
    good, seen = 0, 0
    with torch.no_grad():
        for (x,) in loader:
            good += (model(x) > 0).sum().item()
            seen += len(x)
    if everywhere and dist.is_initialized():
        totals = torch.tensor([good, seen])
        dist.all_reduce(totals)
        good, seen = totals.tolist()
    return good / max(1, seen)

dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))
model = DistributedDataParallel(nn.Linear(2, 1))
loss = model(torch.ones(1, 2)).sum()
loss.backward()
loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
score = validate(model, loader, everywhere=True)
if dist.get_rank() == 0:
    print(f"loss {loss.item()}, score {score}")
""",
    "DDP031: all ranks have equally many samples": """
dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))

@torch.no_grad()
def validate(model):
    total, rounds = 0.0, 0
    for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        total += model(x).mean().item()
        rounds += 1
    mean = torch.tensor(total / rounds)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()

validate(nn.Linear(2, 1))
""",
    "DDP031: counts from a list": """
dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))

@torch.no_grad()
def validate(model):
    seen = []
    for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        seen.append((model(x).sum(), x.size(0)))
    mean = sum(s for s, n in seen) / sum(n for s, n in seen)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()

validate(nn.Linear(2, 1))
""",
    "DDP013: tensors that are no checkpoint": """
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
table = torch.load("table.pt")
model = DistributedDataParallel(nn.Linear(2, 1).cuda())
model(table.cuda()).sum().backward()
""",
    "DDP013: another branch has a device": """
dist.init_process_group("nccl")
device = int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else None
torch.cuda.set_device(device)
saved = torch.load("a.pt") if device is None else torch.load("a.pt", map_location=f"cuda:{device}")
model = nn.Linear(2, 1).cuda()
model.load_state_dict(saved)
DistributedDataParallel(model)(torch.ones(1, 2)).sum().backward()
""",
    "DDP013: each rank loads its own file": """
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Linear(2, 1).cuda()
model.load_state_dict(torch.load(f"part-{dist.get_rank()}.pt"))
DistributedDataParallel(model)(torch.ones(1, 2)).sum().backward()
""",
    "DDP036: all ranks are on one machine": """
os.environ["MASTER_ADDR"] = "localhost"
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
DistributedDataParallel(nn.Linear(2, 1).cuda())(torch.ones(1, 2)).sum().backward()
""",
    "DDP007: the group counts the ranks of one machine, too": """
local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl", rank=local_rank, world_size=torch.cuda.device_count())
share = DistributedSampler(data, torch.cuda.device_count(), local_rank)
""",
    "DDP036: the number of a GPU is computed": """
dist.init_process_group("nccl")
many = int(os.environ["GPUS"])
torch.cuda.set_device(dist.get_rank() - many * (dist.get_rank() // many))
DistributedDataParallel(nn.Linear(2, 1).cuda())(torch.ones(1, 2)).sum().backward()
""",
    "DDP039: another branch shards the whole model": """
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(nn.Linear(2, 1)).cuda()
if len(sys.argv) > 1:
    fully_shard(model)
else:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
model(torch.ones(1, 2)).sum().backward()
""",
    "DDP014: a message about an error": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
data = TensorDataset(torch.ones(8, 2))
for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
    loss = model(x).sum()
    if not loss.isfinite():
        print("the loss is not finite")
    loss.backward()
""",
    "DDP002: the loader of another mode": """
together = "--together" in sys.argv
if together:
    dist.init_process_group("gloo")
model = nn.Linear(2, 1)
data = TensorDataset(torch.ones(8, 2))
if together:
    model = DistributedDataParallel(model)
    loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
else:
    loader = DataLoader(data, shuffle=True)
for (x,) in loader:
    model(x).sum().backward()
""",
    "DDP026: BatchNorm on a CPU": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8)))
model(torch.ones(4, 2)).sum().backward()
""",
    "DDP028: another method divides": """
class Averaged(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.works = inner, []
        for p in inner.parameters():
            dist.broadcast(p.data, 0)
            p.register_post_accumulate_grad_hook(self.begin)

    def begin(self, p):
        self.works.append((p, dist.all_reduce(p.grad, async_op=True)))

    def end(self):
        many = torch.tensor(float(dist.get_world_size()))
        for p, work in self.works:
            work.wait()
            p.grad.mul_(1 / many)
        self.works.clear()

dist.init_process_group("gloo")
""",
    "DDP020: a test starts exactly these processes": """
import unittest

class Group(unittest.TestCase):
    ranks = 3

    def start(self, number, store):
        dist.init_process_group("gloo", store=store, rank=number, world_size=self.ranks)
        dist.destroy_process_group()
""",
    "DDP015: the ranks of other processes": """
dist.init_process_group("gloo")
owner_of = {0: [torch.ones(1)]}
for target_rank, tensors in owner_of.items():
    for tensor in tensors:
        if target_rank < dist.get_world_size():
            dist.broadcast(tensor, src=target_rank)
for rank in range(dist.get_world_size()):
    if rank % 2 == 0:
        dist.new_group([rank])
groups = []
for first in range(2):
    rank = []
    for place in range(2):
        rank.append(first + 2 * place)
    groups.append(rank)
for members in groups:
    dist.new_group(members)
""",
    "DDP015: a wrapper of a smaller group": """
dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
if dist.get_rank() in (0, 1):
    DistributedDataParallel(nn.Linear(2, 1), process_group=pair)(torch.ones(1, 2)).sum().backward()
""",
    "DDP014: a rank from a function that also serves one process": """
def begin():
    if len(sys.argv) < 2:
        return 0, 1
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()

rank, size = begin()
model = DistributedDataParallel(nn.Linear(2, 1))
for epoch in range(3):
    model(torch.ones(1, 2)).sum().backward()
    if rank == 0:
        print(epoch)
""",
    "DDP009: machines that the script names by their addresses": """
os.environ["MASTER_ADDR"] = "10.0.0.3"
dist.init_process_group("gloo")
DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
with open("log.txt", "w") as log:
    log.write("done")
""",
    "DDP010: one process downloads before it starts the ranks": """
from torchvision.datasets import MNIST

def work(rank, size):
    dist.init_process_group("gloo", f"file://{sys.argv[1]}", rank=rank, world_size=size)
    data = MNIST("data", download=True)
    DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

MNIST("data", download=True)
torch.multiprocessing.spawn(work, args=(2,), nprocs=2)
""",
    "DDP017: a time that the ranks agree on": """
import time
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
start = time.time()
for step in range(1000):
    model(torch.ones(1, 2)).sum().backward()
    passed = torch.tensor(time.time() - start)
    dist.broadcast(passed, src=0)
    if passed.item() > 3600:
        break
""",
    "DDP027: another mode trains without a wrapper": """
model = nn.Linear(2, 1)
if len(sys.argv) > 1:
    dist.init_process_group("gloo")
    DistributedDataParallel(model)(torch.ones(1, 2)).sum().backward()
else:
    model(torch.ones(1, 2)).sum().backward()
""",
    "DDP037: a folder of each process": """
import tempfile
dist.init_process_group("gloo")
os.mkdir(os.path.join(tempfile.mkdtemp(), "out"))
DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
""",
    "DDP042: a checkpoint that is tested after training": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
if dist.get_rank() == 0:
    model.load_state_dict(torch.load("best.pt", map_location="cpu"))
    print(model.module(torch.ones(1, 2)))
""",
    "DDP045: this rank's output is put back": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
own = model(torch.ones(4, 2))
parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
dist.all_gather(parts, own)
parts[dist.get_rank()] = own
loss = torch.cat(parts).square().sum()
shown = loss.detach()
dist.all_reduce(shown)
loss.backward()
""",
    "DDP002: an elastic sampler": """
from torch.distributed.elastic.utils.data import ElasticDistributedSampler
distributed = len(sys.argv) > 1
model = nn.Linear(2, 1)
data = TensorDataset(torch.ones(8, 2))
if distributed:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
    sampler = ElasticDistributedSampler(data, dist.get_world_size(), dist.get_rank())
    loader = DataLoader(data, sampler=sampler)
    sampler.set_epoch(1)
else:
    loader = DataLoader(data, shuffle=True)
for (x,) in loader:
    model(x).sum().backward()
""",
    "DDP014: a setting that is an item and an attribute": """
class Settings:
    def __setitem__(self, name, value):
        setattr(self, name, value)

dist.init_process_group("gloo")
settings = Settings()
settings["writes"] = dist.get_rank() == 0
if settings.writes:
    from torch.utils.tensorboard import SummaryWriter
    SummaryWriter()
DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
""",
    "DDP021: only if the variable is not set": """
def default(name, value):
    if name not in os.environ:
        os.environ[name] = value

default("MASTER_PORT", "29501")
dist.init_process_group("gloo")
""",
    "DDP015: an argument of this call leaves the collective out": """
def mean(value, reduce):
    return average(value) if reduce else float(value)

def average(value):
    dist.all_reduce(value)
    return value

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    mean(torch.ones(1), reduce=False)
""",
    "DDP002: each rank has its own part, or its own positions": """
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(nn.Linear(2, 1))
samples = torch.load("samples.pt", map_location="cpu")
part = len(samples) // ranks
mine = samples[rank * part : (rank + 1) * part]
for first in range(0, part, 8):
    model(mine[first : first + 8]).sum().backward()
for step in range(part // 8):
    first = (step * ranks + rank) * 8
    model(samples[first : first + 8]).sum().backward()
""",
    "DDP002: a caller passes the positions": """
class Batches:
    def __init__(self, first):
        self.first = first
        self.samples = torch.load("samples.pt", map_location="cpu")

    def next(self):
        self.first += 8
        return self.samples[self.first : self.first + 8]

def train(first):
    dist.init_process_group("gloo")
    batches = Batches(first)
    model = DistributedDataParallel(nn.Linear(2, 1))
    for _ in range(10):
        model(batches.next()).sum().backward()
    dist.destroy_process_group()
""",
    "DDP002: one loop over the loader to train and the one to validate": """
dist.init_process_group("gloo")
data = TensorDataset(*torch.load("samples.pt", map_location="cpu"))
sampler = DistributedSampler(data)
loaders = {"train": DataLoader(data, sampler=sampler), "val": DataLoader(data)}
model = DistributedDataParallel(nn.Linear(2, 1))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for phase in ("train", "val"):
        for x, y in loaders[phase]:
            loss = model(x).sum()
            if phase == "train":
                loss.backward()
""",
    "DDP005 and DDP017: there is only one epoch": """
EPOCHS = 1
dist.init_process_group("gloo")
data = TensorDataset(*torch.load("samples.pt", map_location="cpu"))
model = DistributedDataParallel(nn.Linear(2, 1))
for epoch in range(EPOCHS):
    for x, y in DataLoader(data, sampler=DistributedSampler(data)):
        loss = model(x).sum()
        loss.backward()
    if loss.item() < 0.1:
        break
""",
    "DDP009: a file of the mode without a rank": TRAINS.format(test="me == 0")
    + """
def main(me):
    dist.init_process_group("gloo", rank=me, world_size=int(os.environ["WORLD_SIZE"]))
    train(me, 3)
    if me is None:
        torch.save({}, "alone.pt")

main(int(os.environ["RANK"]))
""",
    "DDP039: another model of this name": """
from torch.distributed.fsdp import fully_shard

class Cases:
    def whole(self):
        model = nn.Sequential(nn.Linear(2, 1))
        fully_shard(model)

    def layers(self):
        model = nn.Sequential(nn.Linear(2, 1))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
""",
    "DDP009: a file for each sample": TRAINS.format(test="dist.get_rank() == 0")
    + """
dist.init_process_group("gloo")
train(0, 3)
data = TensorDataset(torch.ones(8, 2))
for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
    torch.save(x, f"{x[0]}.pt")
""",
    "DDP041: a rank of one machine or of several": TRAINS.format(test="me == 0")
    + """
if os.environ.get("SLURM_NNODES"):
    me = int(os.environ["SLURM_PROCID"])
else:
    me = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo", rank=me, world_size=int(os.environ["SLURM_NTASKS"]))
train(me, 3)
""",
    "DDP048: a loop over sums": """
dist.init_process_group("gloo")
total = torch.ones(1)
dist.reduce(total, 0)
for name, value in {"sum": total}.items():
    print("one more sum")
""",
    "DDP009: the null device": """
dist.init_process_group("gloo")
with open(os.devnull, "w") as nothing:
    nothing.write("x")
DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
""",
    "DDP014: each rank shows its own numbers": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
for epoch in range(3):
    print("=" * 40)
    print(f"rank {dist.get_rank()}, epoch {epoch}")
    model(torch.ones(1, 2)).sum().backward()
""",
    "DDP014: before the training of each process": """
def work(number, many, fold):
    os.environ["MASTER_PORT"] = os.environ.get("MASTER_PORT", "0")
    dist.init_process_group("gloo", rank=number, world_size=many)
    print(fold)
    DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

if __name__ == "__main__":
    for fold in range(5):
        torch.multiprocessing.spawn(work, args=(2, fold), nprocs=2)
""",
    "DDP022: a checkpoint on one device": """
dist.init_process_group("gloo")
model = nn.Linear(2, 1).to(int(os.environ["LOCAL_RANK"]))
if sys.argv[1:]:
    model.load_state_dict(torch.load(sys.argv[1], map_location=torch.device("cuda:0")))
DistributedDataParallel(model)(torch.ones(1, 2)).sum().backward()
""",
    "DDP010 and DDP014: a process that is started by hand on each machine": """
import argparse
from torchvision.datasets import MNIST

parser = argparse.ArgumentParser()
parser.add_argument("--master-ip", required=True)
parser.add_argument("--rank", type=int)
args = parser.parse_args()
dist.init_process_group("gloo", f"tcp://{args.master_ip}:{sys.argv[1]}", rank=args.rank)
MNIST(".", download=True)
model = DistributedDataParallel(nn.Linear(2, 1))
for epoch in range(3):
    model(torch.ones(1, 2)).sum().backward()
    print(epoch)
""",
    "DDP015 and DDP042: the ranks that one rank starts": """
def probe(rank, size):
    dist.init_process_group("gloo", "file:///tmp/probe", rank=rank, world_size=size)
    model = DistributedDataParallel(nn.Linear(2, 1))
    step(model, torch.ones(1, 2), torch.optim.SGD(model.parameters(), 0.1))
    dist.destroy_process_group()

def main(rank, size):
    dist.init_process_group("gloo", "file:///tmp/main", rank=rank, world_size=size)
    dist.barrier()
    if rank == 0:
        torch.multiprocessing.spawn(probe, args=(size,), nprocs=size)
    dist.destroy_process_group()

torch.multiprocessing.spawn(main, args=(2,), nprocs=2)
""",
    "DDP015: a collective of the training mode only": """
class Net(nn.Module):
    def forward(self, x):
        if self.training:
            dist.all_reduce(x)
        return x

dist.init_process_group("gloo")
model = DistributedDataParallel(Net())
model.train()
model(torch.ones(1, 2))
model.eval()
if dist.get_rank() == 0:
    model(torch.ones(1, 2))
""",
    "DDP040: a loader whose default is to have no rank": """
def loader_of(data, rank=-1, size=-1):
    sampler = None
    if rank >= 0 and size >= 0:
        sampler = DistributedSampler(data, size, rank)
    return DataLoader(data, sampler=sampler)

dist.init_process_group("gloo")
data = TensorDataset(*torch.load("samples.pt", map_location="cpu"))
model = DistributedDataParallel(nn.Linear(2, 1))
train = loader_of(data, dist.get_rank(), dist.get_world_size())
for x, y in train:
    model(x).sum().backward()
if dist.get_rank() == 0:
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader_of(data):
            total += model.module(x).sum().item()
    print(total)
""",
    "DDP014 and DDP040: a warning": """
dist.init_process_group("gloo")
data = TensorDataset(*torch.load("samples.pt", map_location="cpu"))
model = DistributedDataParallel(nn.Linear(2, 1))
for x, y in DataLoader(data, sampler=DistributedSampler(data)):
    logits = model(x)
    if torch.isnan(logits).any():
        print("not a number")
    logits.sum().backward()
model.eval()
total = 0.0
with torch.no_grad():
    for x, y in DataLoader(data, sampler=DistributedSampler(data)):
        total += model(x).sum().item()
if total != total or torch.isinf(torch.tensor(total)):
    print(f"the loss is {total}")
""",
    "DDP009: a file of the mode with one process": """
def begin(args):
    if "RANK" not in os.environ:
        args.distributed = False
        return
    args.distributed = True
    dist.init_process_group("gloo")

import argparse
args = argparse.ArgumentParser().parse_args()
begin(args)
model = DistributedDataParallel(nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
if args.distributed:
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
else:
    torch.save(model.state_dict(), "model.pt")
""",
    "DDP030: another parameter's gradient is averaged later": """
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1))
scale = nn.Parameter(torch.ones(1))
(model(torch.ones(1, 2)) * scale).sum().backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
dist.all_reduce(scale.grad, op=dist.ReduceOp.AVG)
""",
    "DDP034: gradients that one rank gathers and scatters": """
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
data = TensorDataset(*torch.load("samples.pt", map_location="cpu"))
torch.manual_seed(0)
model = nn.Linear(2, 1)
for x, y in DataLoader(data, sampler=DistributedSampler(data)):
    model(x).sum().backward()
    for p in model.parameters():
        parts = [torch.zeros_like(p) for _ in range(size)] if rank == 0 else None
        dist.gather(p.grad, parts)
        if rank == 0:
            parts = [torch.stack(parts).mean(0)] * size
        dist.scatter(p.grad, parts)
""",
    "DDP034: a wrapper of the script's own": """
class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.reducer = dist.Reducer(list(module.parameters()))

    def forward(self, x):
        return self.module(x)

dist.init_process_group("gloo")
data = TensorDataset(*torch.load("samples.pt", map_location="cpu"))
torch.manual_seed(0)
model = Wrapper(nn.Linear(2, 1))
for x, y in DataLoader(data, sampler=DistributedSampler(data)):
    model(x).sum().backward()
""",
    "DDP027: a frozen model beside the trained one": """
dist.init_process_group("gloo")
teacher = DistributedDataParallel(nn.Linear(2, 1))
model = DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.ones(1, 2)
(model(x) - teacher.module(x)).sum().backward()
optimizer.step()
""",
    "DDP035: negative samples": """
import numpy
dist.init_process_group("gloo")
pairs = torch.load("pairs.pt", map_location="cpu")
data = TensorDataset(pairs, torch.tensor(numpy.random.choice(pairs.numpy(), size=8)))
model = DistributedDataParallel(nn.Linear(2, 1))
for x, other in DataLoader(data, sampler=DistributedSampler(data)):
    model(x - other).sum().backward()
""",
    "DDP010: all ranks but one wait before a download": """
from torchvision.datasets import MNIST

dist.init_process_group("gloo")
if dist.is_initialized():
    if dist.get_rank() != 0:
        dist.barrier()
MNIST(".", download=True)
if dist.is_initialized():
    if dist.get_rank() == 0:
        dist.barrier()
step(DistributedDataParallel(nn.Linear(2, 1)), torch.ones(1, 2), None)
""",
    "DDP014: a log of one rank by a flag in a dictionary": """
from torch.utils.tensorboard import SummaryWriter

class Log:
    def __init__(self, enable, flags):
        self.flags = flags
        for name, flag in flags.items():
            self.flags[name] = flag and enable
        if self.flags["writer"]:
            self.writer = SummaryWriter("log")

dist.init_process_group("gloo")
Log(dist.get_rank() == 0, {"writer": True})
step(DistributedDataParallel(nn.Linear(2, 1)), torch.ones(1, 2), None)
""",
    "DDP005: a function that returns two loaders or three": """
def loaders(data, test):
    train = DataLoader(data, sampler=DistributedSampler(data))
    rest = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
    if test:
        return train, rest, rest
    return train, rest

dist.init_process_group("gloo")
data = TensorDataset(*torch.load("samples.pt", map_location="cpu"))
model = DistributedDataParallel(nn.Linear(2, 1))
train, rest = loaders(data, len(sys.argv) > 1)
for epoch in range(3):
    train.sampler.set_epoch(epoch)
    for x, y in train:
        model(x).sum().backward()
""",
    "DDP005: a class that is found by its name sets the epoch": """
class Hooks:
    def begin(self, epoch):
        self.loader.sampler.set_epoch(epoch)

dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))
model = DistributedDataParallel(nn.Linear(2, 1))
loader = Hooks.loader = DataLoader(data, sampler=DistributedSampler(data))
hooks = globals()["Hooks"]()
for epoch in range(3):
    hooks.begin(epoch)
    for (x,) in loader:
        model(x).sum().backward()
""",
    "DDP009: an item of a dict is the rank if there are others": """
settings = {"place": 0, "epochs": 2}
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
    settings["place"] = dist.get_rank()

class Keeper:
    def __init__(self, settings):
        self.writes = settings["place"] == 0

    def keep(self, model):
        if self.writes:
            torch.save(model.state_dict(), "model.pt")

model = DistributedDataParallel(nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
Keeper(settings).keep(model.module)
""",
    "DDP009: a helper makes a group of one process": """
def restore(path, state):
    dist.init_process_group("gloo", rank=0, world_size=1)
    dist.checkpoint.load(state, checkpoint_id=path)

model = nn.Linear(2, 1).cuda()
restore("start", model.state_dict())
model(torch.ones(1, 2).cuda()).sum().backward()
torch.save(model.state_dict(), "model.pt")
""",
    "DDP013: a state that FSDP has moved to the CPU": """
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel
WHOLE = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
dist.init_process_group("nccl")
model = nn.Linear(2, 1)
model.load_state_dict(torch.load("model.pt"))
model = FullyShardedDataParallel(model)
model(torch.ones(1, 2)).sum().backward()
""",
    "DDP014: the runs of all ranks have a group": """
import wandb
dist.init_process_group("gloo")
wandb.init(project="p", group=sys.argv[1])
"""
    + TRAINS.format(test="dist.get_rank() == 0")
    + "\ntrain(0, 3)\n",
    "DDP015: the number of this rank's samples": """
dist.init_process_group("gloo")
share = int(sys.argv[1]) // dist.get_world_size()
first = dist.get_rank() * share
last = first + share
for _ in range(last - first):
    dist.barrier()
""",
    "DDP015: BatchNorm without buffers": """
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False))
model = DistributedDataParallel(net)
model(torch.ones(4, 2)).sum().backward()
if dist.get_rank() == 0:
    with torch.no_grad():
        print(model(torch.ones(4, 2)))
""",
    "DDP017: a folder that is named after the time": """
from datetime import datetime
folder = os.path.join("runs", datetime.now().strftime("%H-%M-%S"))
again = False
if os.path.isfile(os.path.join(folder, "settings.json")):
    again = True
dist.init_process_group("gloo")
if again:
    dist.barrier()
""",
    "DDP021: an unused function sets the port": """
def once():
    os.environ["MASTER_PORT"] = "1234"
    torch.manual_seed(3)

dist.init_process_group("gloo")
""",
    "DDP022: a model is moved again, to the GPU of the rank": """
def make():
    return nn.Linear(2, 1).cuda()

dist.init_process_group("nccl")
place = torch.device("cuda:{}".format(dist.get_rank() % torch.cuda.device_count()))
net = make().to(place)
model = DistributedDataParallel(net, device_ids=[place])
model(torch.ones(1, 2).to(place)).sum().backward()
""",
    "DDP022: a model with parts on two GPUs": """
dist.init_process_group("gloo")
body, head = nn.Linear(2, 3).to("cuda:0"), nn.Linear(3, 1).to("cuda:1")
head(body(torch.ones(1, 2).to("cuda:0")).to("cuda:1")).sum().backward()
""",
    "DDP041: a rank from `spawn` or from the launcher": """
def begin(me=None, n=None):
    if me is None:
        me, n = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    dist.init_process_group("gloo", rank=me, world_size=n)

def work(me, n):
    if me == 0:
        with open("settings.txt", "w") as file:
            file.write(str(n))
    begin(me, n)
    DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

torch.multiprocessing.spawn(work, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
""",
    "DDP041: all ranks meet on this machine": """
import argparse
args = argparse.ArgumentParser().parse_args()

def work(gpu, args):
    rank = args.node * args.gpus + gpu
    dist.init_process_group("gloo", rank=rank, world_size=args.nodes * args.gpus)
    model = DistributedDataParallel(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    if gpu == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()

os.environ["MASTER_ADDR"] = "localhost"
torch.multiprocessing.spawn(work, args=(args,), nprocs=args.gpus)
""",
    "DDP013: a scaler and a scheduler have no tensors on a GPU": """
def restore(model, scaler=None, scheduler=None):
    scaler.load_state_dict(torch.load("scaler.pt"))
    scheduler.load_state_dict(torch.load("scheduler.pt"))

dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(2, 1))
restore(model)
model(torch.ones(1, 2)).sum().backward()
""",
    "DDP017: whether a list has elements does not depend on samples": """
dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 2))
means, more = [], len(sys.argv) > 1
for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
    means.append(x.mean())
if more and means:
    dist.barrier()
if not means:
    dist.barrier()
""",
    "DDP022: Slurm gives each task one GPU": """
place = torch.device("cuda:0")
dist.init_process_group("nccl", rank=int(os.environ["SLURM_PROCID"]), world_size=4 * len(sys.argv))
model = DistributedDataParallel(nn.Linear(2, 1).to(place))
model(torch.ones(1, 2).to(place)).sum().backward()
""",
}
ALL = RANK_ENTERS | CONDITIONS | MODES | RULES_TOO_EARLY


@pytest.mark.parametrize("kind", ALL)
def test_a_correct_script_has_no_findings(kind):
    found = review_text(START + ALL[kind] + END, "script.py").findings

    assert [(f.line, f.code) for f in found] == []


PARTIAL = """
import functools
make = functools.partial(DataLoader, batch_size=4)
dist.init_process_group("gloo")
"""
LOSS = """
from torch.distributed.nn.functional import all_gather

class Contrast(nn.Module):
    def forward(self, own):
        return (own @ torch.cat(all_gather(own)).T).sum()
"""
SHARE = """
class Share(torch.utils.data.Sampler):
    def __init__(self, n, rank, world_size):
        self.n, self.rank, self.world_size = n - n % world_size, rank, world_size

    def __iter__(self):
        for number in range(self.n):
            if number % self.world_size == self.rank:
                yield number
"""
PLAIN = "TensorDataset(torch.ones(8, 2))"
STEP = "\nfor (x,) in loader:\n    {loss}.backward()\n"


@pytest.mark.parametrize(
    "script",
    [
        PARTIAL
        + f"data = {PLAIN}\nmodel = functools.partial(DistributedDataParallel)(nn.Linear(2, 1))"
        + "\nloader = make(data, sampler=DistributedSampler(data))"
        + STEP.format(loss="model(x).sum()"),
        LOSS
        + PARTIAL
        + f"data = {PLAIN}\nmodel = DistributedDataParallel(nn.Linear(2, 1))"
        + "\nloader = make(data, sampler=DistributedSampler(data))"
        + STEP.format(loss="Contrast()(model(x))"),
        SHARE
        + PARTIAL
        + f"data = {PLAIN}\nmodel = DistributedDataParallel(nn.Linear(2, 1))"
        + "\nloader = make(data, sampler=Share(8, dist.get_rank(), dist.get_world_size()))"
        + STEP.format(loss="model(x).sum()"),
    ],
    ids=["partial", "a loss with a differentiable gather", "equal shares by a condition"],
)
def test_a_correct_loop_with_arguments_bound_or_classes_called_has_no_findings(script):
    assert review_text(START + script + END, "script.py").findings == ()


def test_a_folder_of_a_function_without_its_caller_is_not_judged():
    body = """
def main():
    dist.init_process_group("gloo")
    os.makedirs("runs")
    DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
"""

    assert review_text(START + body, "helper.py").findings == ()
    assert [f.code for f in review_text(START + body + "\nmain()" + END, "train.py").findings] == [
        "DDP037"
    ]


@pytest.mark.parametrize("name", ["test_group.py", "src/group_test.py", "conftest.py"])
def test_a_test_may_choose_its_ranks_and_ports(name):
    script = (
        START
        + """
def setup():
    os.environ["MASTER_PORT"] = "29501"
    dist.init_process_group("gloo", rank=1, world_size=10)
"""
    )

    assert [f.code for f in review_text(script, "train.py").findings] == ["DDP021", "DDP020"]
    assert review_text(script, name).findings == ()
    if name != "conftest.py":  # a script, whatever its name is
        assert review_text(script + '\nif __name__ == "__main__":\n    setup()\n', name).findings


def test_a_file_beside_the_script_hides_an_installed_package(tmp_path):
    (tmp_path / "datasets.py").write_text("def number():\n    return 3\n")
    (tmp_path / "train.py").write_text(
        START
        + """
from datasets import number
dist.init_process_group("gloo")
for _ in range(number(dist.get_rank())):
    dist.barrier()
"""
        + END
    )

    assert review([tmp_path / "train.py"]).findings == ()
