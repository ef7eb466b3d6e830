"""Mistakes that change results, hang or damage files, in other forms than on the rules' pages."""

import pytest

from gradsync.review import review_text
from gradsync.review.catalogue import selected

START = """
import os, random, shutil, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

data = TensorDataset(torch.ones(8, 2))
"""
BEGIN = """
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
"""
END = "\ndist.destroy_process_group()\n"
MODEL = "model = DistributedDataParallel(nn.Linear(2, 1).cuda())\n"
STEP = "model(torch.ones(1, 2)).sum().backward()\n"

MISTAKES = {
    "a model of another library that is called without its wrapper": (
        "DDP027",
        BEGIN
        + """
import timm
net = timm.create_model("vit_tiny").cuda()
wrapped = DistributedDataParallel(net)
for (x,) in DataLoader(data, sampler=DistributedSampler(data)):
    net(x).sum().backward()
""",
    ),
    "gradients that a class never averages": (
        "DDP034",
        """
class Trainer:
    def __init__(self):
        self.model, self.loss = nn.Linear(2, 1).cuda(), nn.MSELoss()
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, sampler=self.sampler)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def run(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                self.loss(self.model(x.cuda()), x.cuda()).backward()
                self.optimizer.step()
"""
        + BEGIN
        + "Trainer().run(3)\n",
    ),
    "a split by scikit-learn": (
        "DDP035",
        BEGIN
        + MODEL
        + """
from sklearn.model_selection import train_test_split
first, second = train_test_split(list(range(100)), test_size=0.2)
"""
        + STEP,
    ),
    "hand-written batches that ignore the rank": (
        "DDP002",
        """
class Batches:
    def __init__(self, tokens, size):
        self.tokens, self.size, self.at = tokens, size, 0

    def next_batch(self):
        found = self.tokens[self.at : self.at + self.size]
        self.at += self.size
        return found
"""
        + BEGIN
        + MODEL
        + """
batches = Batches(torch.ones(1000, 2), 8)
for step in range(10):
    model(batches.next_batch().cuda()).sum().backward()
""",
    ),
    "a sum that only one rank has": (
        "DDP015",
        BEGIN
        + """
total = torch.ones(1).cuda()
dist.reduce(total, dst=0)
if total.item() > 3:
    dist.barrier()
""",
    ),
    "a backward pass on one rank": (
        "DDP015",
        BEGIN + MODEL + "if dist.get_rank() == 0:\n    " + STEP,
    ),
    "a wrapper on one rank": (
        "DDP015",
        BEGIN + "model = nn.Linear(2, 1).cuda()\nif dist.get_rank() == 0:\n    " + MODEL,
    ),
    "a sharded checkpoint on one rank": (
        "DDP015",
        BEGIN
        + """
from torch.distributed import checkpoint
if dist.get_rank() == 0:
    checkpoint.save({"step": 1}, checkpoint_id="folder")
""",
    ),
    "a loop count that only one rank reads": (
        "DDP015",
        BEGIN
        + """
first = 0
if dist.get_rank() == 0:
    first = torch.load("last.pt", map_location="cpu")["epoch"]
for epoch in range(first, 10):
    dist.barrier()
""",
    ),
    "a group of other ranks on each rank": (
        "DDP015",
        BEGIN + "low = dist.get_rank() // 2 * 2\npair = dist.new_group([low, low + 1])\n",
    ),
    "a batch that is skipped without memory": (
        "DDP017",
        BEGIN
        + MODEL
        + """
for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
    try:
        model(x).sum().backward()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        continue
""",
    ),
    "a flag that one rank sets to stop": (
        "DDP016",
        BEGIN
        + MODEL
        + """
for epoch in range(10):
    stop = False
    for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        model(x).sum().backward()
    if dist.get_rank() == 0 and os.path.exists("stop"):
        stop = True
    if stop:
        break
""",
    ),
    "the number of a GPU in a node": (
        "DDP036",
        """
class Trainer:
    def __init__(self):
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        print("on", os.environ["SLURM_NODELIST"])
        torch.cuda.set_device(self.rank)
        self.model = DistributedDataParallel(nn.Linear(2, 1).cuda())
        self.model(torch.ones(1, 2)).sum().backward()

Trainer()
""",
    ),
    "the number of a GPU under a launcher that may start several machines": (
        "DDP036",
        'dist.init_process_group("nccl")\ntorch.cuda.set_device(dist.get_rank())\n' + MODEL + STEP,
    ),
    "a sampler that counts on one machine, in a group that counts on all": (
        "DDP007",
        BEGIN
        + """
local_rank = int(os.environ["LOCAL_RANK"])
share = DistributedSampler(data, torch.cuda.device_count(), local_rank)
""",
    ),
    "two collectives under one condition, of which the ranks reach only the first": (
        "DDP017",
        BEGIN
        + MODEL
        + """
for (x,) in DataLoader(data, sampler=DistributedSampler(data)):
    loss = model(x).sum()
    if not torch.isfinite(loss):
        continue
    loss.backward()
    dist.all_reduce(loss.detach())
""",
    ),
    "a forward pass of a sharded model on one rank": (
        "DDP015",
        BEGIN
        + """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(nn.Linear(2, 1).cuda())
if dist.get_rank() == 0:
    with torch.no_grad():
        print(model(torch.ones(1, 2)))
""",
    ),
    "parameters that each rank draws after wrapping": (
        "DDP032",
        BEGIN
        + """
def init_weights(layer):
    nn.init.normal_(layer.weight)

"""
        + MODEL
        + "model.apply(init_weights)\n"
        + STEP,
    ),
    "a sampler that gets the epoch, but does not shuffle": (
        "DDP005",
        BEGIN
        + MODEL
        + """
loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
for epoch in range(10):
    loader.sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x).sum().backward()
""",
    ),
    "an endless generator of batches": (
        "DDP005",
        """
def forever(loader):
    while True:
        yield from_first(loader)
        for batch in loader:
            yield batch

def from_first(loader):
    return next(iter(loader))
"""
        + BEGIN
        + MODEL
        + """
batches = forever(DataLoader(data, sampler=DistributedSampler(data)))
for step in range(1000):
    (x,) = next(batches)
    model(x).sum().backward()
""",
    ),
    "an accuracy of one share that chooses the checkpoint": (
        "DDP040",
        """
def accuracy(model, loader):
    model.eval()
    good, seen = 0, 0
    with torch.inference_mode():
        for (x,) in loader:
            good += (model(x.cuda()) > 0).sum().item()
            seen += x.size(0)
    return good / seen
"""
        + BEGIN
        + MODEL
        + STEP
        + """
best = 0.0
now = accuracy(model, DataLoader(data, sampler=DistributedSampler(data, shuffle=False)))
if dist.get_rank() == 0 and now > best:
    torch.save(model.module.state_dict(), "best.pt")
""",
    ),
    "a download with names of a star import": (
        "DDP010",
        "from torchvision.datasets import *\n"
        + BEGIN
        + MODEL
        + "images = CIFAR100('data', train=True, download=True)\n"
        + STEP,
    ),
    "a file that all ranks open to write": (
        "DDP009",
        BEGIN + MODEL + STEP + "with open('log.txt', mode='w') as log:\n    log.write('done')\n",
    ),
    "a folder that all ranks make after a check": (
        "DDP037",
        BEGIN + MODEL + "if not os.path.isdir('out'):\n    os.makedirs('out')\n" + STEP,
    ),
    "a folder that all ranks delete": (
        "DDP037",
        BEGIN + MODEL + "shutil.rmtree('out', ignore_errors=True)\n" + STEP,
    ),
    "the forward method of a sharded model": (
        "DDP039",
        BEGIN
        + """
from torch.distributed.fsdp import fully_shard
model = nn.Linear(2, 1).cuda()
fully_shard(model)
model.forward(torch.ones(1, 2)).sum().backward()
""",
    ),
    "a limit of time that each rank reads for itself": (
        "DDP017",
        "import time\nstart = time.monotonic()\n"
        + BEGIN
        + MODEL
        + """
for step in range(1000):
    model(torch.ones(1, 2)).sum().backward()
    late = time.monotonic() - start > 3600
    if late:
        break
""",
    ),
    "an evaluation of one rank that broadcasts buffers": (
        "DDP015",
        BEGIN
        + """
net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
model = DistributedDataParallel(net)
model(torch.ones(4, 2)).sum().backward()
model.eval()
if dist.get_rank() == 0:
    with torch.no_grad():
        print(model(torch.ones(1, 2)))
""",
    ),
    "collectives in the order of a set": (
        "DDP015",
        BEGIN
        + MODEL
        + STEP
        + "for buffer in set(model.buffers()):\n    dist.broadcast(buffer, src=0)\n",
    ),
    "the same source in each of several groups": (
        "DDP044",
        BEGIN
        + """
pairs = [dist.new_group([n, n + 1]) for n in range(0, dist.get_world_size(), 2)]
value = torch.ones(1).cuda()
dist.broadcast(value, 0, group=pairs[dist.get_rank() // 2])
""",
    ),
    "a loss of gathered outputs": (
        "DDP045",
        """
class Contrast(nn.Module):
    def forward(self, own):
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        every = torch.cat(parts)
        return nn.functional.cross_entropy(every @ every.T, torch.arange(len(every)))
"""
        + BEGIN
        + MODEL
        + "Contrast()(model(torch.ones(4, 2).cuda())).backward()\n",
    ),
    "indices that each process shuffles for itself": (
        "DDP035",
        BEGIN
        + MODEL
        + """
order = list(range(8))
random.shuffle(order)
train = torch.utils.data.Subset(data, order[:6])
for (x,) in DataLoader(train, sampler=DistributedSampler(train, shuffle=False)):
    model(x).sum().backward()
""",
    ),
    "replicas that begin with other random parameters": (
        "DDP032",
        BEGIN
        + """
model = nn.Linear(2, 1).cuda()
model(torch.ones(1, 2)).sum().backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()
""",
    ),
    "the epoch of a sampler that no loader uses": (
        "DDP005",
        BEGIN
        + MODEL
        + """
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        model(x).sum().backward()
""",
    ),
    "a figure that all ranks save": (
        "DDP009",
        "from matplotlib import pyplot\n"
        + BEGIN
        + MODEL
        + STEP
        + "figure = pyplot.figure()\nfigure.savefig('loss.png')\n",
    ),
    "a corpus that all ranks download": (
        "DDP010",
        "import nltk\n" + BEGIN + MODEL + STEP + "nltk.download('punkt')\n",
    ),
    "an optimizer that steps on one rank": (
        "DDP042",
        BEGIN
        + MODEL
        + """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    if dist.get_rank() != 0:
        continue
    optimizer.step()
""",
    ),
    "a checkpoint that one rank loads after wrapping": (
        "DDP042",
        BEGIN
        + MODEL
        + """
if dist.get_rank() == 0:
    model.load_state_dict(torch.load("model.pt", map_location="cuda"))
"""
        + STEP,
    ),
    "a file of the first process on each machine": (
        "DDP041",
        """
def work(number, machine, each, many):
    dist.init_process_group("nccl", rank=machine * each + number, world_size=many)
    torch.cuda.set_device(number)
    model = DistributedDataParallel(nn.Linear(2, 1).cuda())
    model(torch.ones(1, 2)).sum().backward()
    if number == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()

nnodes, each = int(sys.argv[1]), torch.cuda.device_count()
torch.multiprocessing.spawn(work, args=(int(sys.argv[2]), each, nnodes * each), nprocs=each)
""",
    ),
    "a helper that goes on without memory": (
        "DDP017",
        """
def attempt(model):
    try:
        model(torch.ones(1, 2)).sum().backward()
    except RuntimeError as error:
        if "out of memory" in str(error):
            return False
        raise
    return True
"""
        + BEGIN
        + MODEL
        + "for step in range(3):\n    attempt(model)\n",
    ),
    "a GPU that a format string names": (
        "DDP022",
        BEGIN.replace("torch.cuda.set_device", "print")
        + "device = torch.device('cuda:{}'.format(0))\n"
        + "model = DistributedDataParallel(nn.Linear(2, 1).to(device))\n"
        + STEP,
    ),
    "a rank in the environment of all processes": (
        "DDP020",
        "os.environ['RANK'] = '0'\nos.environ['WORLD_SIZE'] = '4'\n" + BEGIN + MODEL + STEP,
    ),
    "a port for processes that the script starts": (
        "DDP021",
        """
def work(number, many):
    dist.init_process_group("nccl", rank=number, world_size=many)
    torch.cuda.set_device(number)
    model = DistributedDataParallel(nn.Linear(2, 1).cuda())
    model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    torch.multiprocessing.spawn(work, args=(2,), nprocs=2)
""",
    ),
    "a device without a number in a variable": (
        "DDP022",
        """
dist.init_process_group("nccl")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = DistributedDataParallel(nn.Linear(2, 1).to(device))
"""
        + STEP,
    ),
    "a slice of the samples at the same position on all ranks": (
        "DDP002",
        BEGIN
        + MODEL
        + """
samples = torch.load("samples.pt", map_location="cpu")
for first in range(0, len(samples), 8):
    model(samples[first : first + 8].cuda()).sum().backward()
""",
    ),
    "a batch size that grows with the number of ranks": (
        "DDP008",
        BEGIN
        + MODEL
        + """
loader = DataLoader(data, 8 * dist.get_world_size(), sampler=DistributedSampler(data))
for (x,) in loader:
    model(x).sum().backward()
""",
    ),
    "an accuracy of one share without no_grad": (
        "DDP040",
        BEGIN
        + MODEL
        + """
def accuracy(loader):
    model.eval()
    return sum(model(x.cuda()).argmax(1).sum().item() for (x,) in loader)

STEP
right = accuracy(DataLoader(data, sampler=DistributedSampler(data, shuffle=False)))
if dist.get_rank() == 0:
    print(right)
""".replace("STEP\n", STEP),
    ),
    "a learning rate that follows the loss of one share": (
        "DDP040",
        BEGIN
        + MODEL
        + STEP
        + """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
total = 0
with torch.no_grad():
    for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        total += model(x.cuda()).sum().item()
scheduler.step(total)
""",
    ),
    "a loader that begins again after its last batch": (
        "DDP005",
        BEGIN
        + MODEL
        + """
loader = DataLoader(data, sampler=DistributedSampler(data))
batches = iter(loader)
for step in range(100):
    try:
        (x,) = next(batches)
    except StopIteration:
        batches = iter(loader)
        (x,) = next(batches)
    model(x).sum().backward()
""",
    ),
    "shuffled files for a dataset of another file": (
        "DDP035",
        BEGIN
        + MODEL
        + """
from elsewhere import Files
names = os.listdir("data")
random.shuffle(names)
files = Files(names[:80])
for (x,) in DataLoader(files, sampler=DistributedSampler(files)):
    model(x).sum().backward()
""",
    ),
    "another method of the inner model": (
        "DDP027",
        BEGIN
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def encode(self, x):
        return self.layer(x)

model = DistributedDataParallel(Net().cuda())
for (x,) in DataLoader(data, sampler=DistributedSampler(data)):
    model.module.encode(x.cuda()).sum().backward()
""",
    ),
    "a sharded model that one rank loads": (
        "DDP042",
        """
from torch.distributed.fsdp import FullyShardedDataParallel
"""
        + BEGIN
        + """
model = FullyShardedDataParallel(nn.Linear(2, 1).cuda())
if dist.get_rank() == 0:
    model.load_state_dict(torch.load("model.pt", map_location="cpu"))
"""
        + STEP,
    ),
    "a download that the mode without ranks makes, too": (
        "DDP010",
        """
import argparse
from torchvision.datasets import MNIST

def work(number, args):
    if args.ranks > 1:
        dist.init_process_group("nccl", rank=number, world_size=args.ranks)
        torch.cuda.set_device(number)
    MNIST("data", download=True)
    model = nn.Linear(2, 1).cuda()
    if args.ranks > 1:
        model = DistributedDataParallel(model)
    model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

args = argparse.ArgumentParser().parse_args()
if args.ranks > 1:
    torch.multiprocessing.spawn(work, args=(args,), nprocs=args.ranks)
else:
    work(0, args)
""",
    ),
    "a file that all ranks save if the model has a certain class": (
        "DDP009",
        BEGIN
        + MODEL
        + STEP
        + """
if isinstance(model, DistributedDataParallel):
    torch.save(model.module.state_dict(), "model.pt")
""",
    ),
}


FLOWS = {
    "a skipped step after a loss of the script's own": (
        "DDP017",
        """
class Loss(nn.Module):
    def forward(self, x):
        return x.square().mean()
""",
        "loss = Loss()(model(x))\n        if torch.isnan(loss):\n            continue\n        "
        "loss.backward()",
    ),
    "a counter that is called with the accuracy of a share": (
        "DDP017",
        """
class Patience:
    def __init__(self):
        self.best, self.bad, self.stop = 0, 0, False

    def __call__(self, accuracy):
        self.bad = 0 if accuracy > self.best else self.bad + 1
        if self.bad > 3:
            self.stop = True

patience = Patience()
""",
        "model(x).sum().backward()\n        with torch.no_grad():\n            r = model(x) > 0\n"
        "    patience(r.float().mean().item())\n    if patience.stop:\n        break",
    ),
    "a state of shards after some ranks have left": (
        "DDP016",
        """
from torch.distributed.fsdp import FullyShardedDataParallel

def save(model):
    if dist.get_rank() > 0:
        return
    torch.save(model.state_dict(), "model.pt")

model = FullyShardedDataParallel(nn.Linear(2, 1).cuda())
""",
        "model(x).sum().backward()\n    save(model)",
    ),
    "every n-th batch": (
        "DDP006",
        "loader = list(enumerate(DataLoader(data)))\nrank, world_size = dist.get_rank(), 4 * nodes",
        "if x[0] % world_size == rank:\n            model(x[1]).sum().backward()",
    ),
    "a split with a seed of each rank": (
        "DDP035",
        "torch.manual_seed(dist.get_rank())\ndata, rest = random_split(data, [6, 2])",
        "model(x).sum().backward()",
    ),
    "a checkpoint of the first process on each machine, by a launcher": (
        "DDP041",
        "",
        "model(x).sum().backward()\n    if int(os.environ['LOCAL_RANK']) == 0:\n        "
        "torch.save(model.module.state_dict(), 'model.pt')",
    ),
    "a loader in `yield from`, with a sampler chosen at run time": (
        "DDP005",
        """
from torch.utils.data import RandomSampler

def forever(loader):
    while True:
        yield from loader

Kind = DistributedSampler if dist.is_initialized() else RandomSampler
loader = forever(DataLoader(data, sampler=Kind(data)))
""",
        "model(x).sum().backward()",
    ),
}


@pytest.mark.parametrize("kind", FLOWS)
def test_a_mistake_is_followed_through_classes_and_generators(kind):
    code, before, step = FLOWS[kind]
    loop = "for epoch in range(9):\n    sampler.set_epoch(epoch)\n    for x in loader:\n        "
    loader = "sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)\n"
    script = START + BEGIN + MODEL + loader + before + "\n" + loop + step + "\n" + END

    assert [f.code for f in review_text(script, "script.py").findings] == [code]


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_found_and_nothing_else(kind):
    code, body = MISTAKES[kind]

    found = review_text(START + body + END, "script.py").findings

    assert [f.code for f in found] == [code]


def test_a_port_that_the_script_gives_its_own_processes_overrides_no_launcher():
    _, body = MISTAKES["a port for processes that the script starts"]

    (found,) = review_text(START + body, "script.py").findings

    assert "launcher" not in found.reason


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("DDP033", "x = x + torch.randn_like(x)"),
        ("DDP033", "x = nn.Dropout(0.1)(x)"),
        ("DDP047", "dist.barrier()"),
    ],
)
def test_a_possible_mistake_or_a_cost_is_found_if_it_is_selected(code, body):
    script = (
        START
        + BEGIN
        + MODEL
        + "torch.manual_seed(0)\nsampler = DistributedSampler(data, shuffle=False)\n"
        + "for (x,) in DataLoader(data, sampler=sampler):\n    "
        + body
        + "\n    model(x).sum().backward()\n"
        + END
    )

    assert review_text(script, "script.py").findings == ()
    chosen = review_text(script, "script.py", selected(code), unsure=True).findings
    assert [finding.code for finding in chosen] == [code]
