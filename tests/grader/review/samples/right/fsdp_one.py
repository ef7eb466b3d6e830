"""FullyShardedDataParallel with a full checkpoint on rank 0."""

import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.optim as optim
import tqdm
from torch.distributed.fsdp import (
    FullStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data.distributed import DistributedSampler
from transformers import T5ForConditionalGeneration, T5Tokenizer
from transformers.models.t5.modeling_t5 import T5Block
from wikihow import WikiHow


def train(model, rank, train_loader, optimizer, epoch, sampler):
    model.train()
    local_rank = int(os.environ["LOCAL_RANK"])
    fsdp_loss = torch.zeros(2).to(local_rank)
    if sampler:
        sampler.set_epoch(epoch)
    if rank == 0:
        bar = tqdm.tqdm(range(len(train_loader)), desc="training")
    for batch in train_loader:
        for key in batch:
            batch[key] = batch[key].to(local_rank)
        optimizer.zero_grad()
        output = model(input_ids=batch["source_ids"], labels=batch["target_ids"])
        loss = output["loss"]
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        fsdp_loss[0] += loss.item()
        fsdp_loss[1] += len(batch)
        if rank == 0:
            bar.update(1)
    dist.all_reduce(fsdp_loss, op=dist.ReduceOp.SUM)
    accuracy = fsdp_loss[0] / fsdp_loss[1]
    if rank == 0:
        bar.close()
        print(f"epoch {epoch}: loss {accuracy:.4f}")
    return accuracy


def validation(model, rank, val_loader):
    model.eval()
    local_rank = int(os.environ["LOCAL_RANK"])
    fsdp_loss = torch.zeros(2).to(local_rank)
    with torch.no_grad():
        for batch in val_loader:
            output = model(input_ids=batch["source_ids"], labels=batch["target_ids"])
            fsdp_loss[0] += output["loss"].item()
            fsdp_loss[1] += len(batch)
    dist.all_reduce(fsdp_loss, op=dist.ReduceOp.SUM)
    val_loss = fsdp_loss[0] / fsdp_loss[1]
    if rank == 0:
        print(f"validation loss {val_loss:.4f}")
    return val_loss


def fsdp_main(args):
    model = T5ForConditionalGeneration.from_pretrained("t5-base")
    tokenizer = T5Tokenizer.from_pretrained("t5-base")
    local_rank = int(os.environ["LOCAL_RANK"])
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    train_dataset = WikiHow(tokenizer, "train", 1500)
    val_dataset = WikiHow(tokenizer, "validation", 300)
    sampler1 = DistributedSampler(train_dataset, rank=rank, num_replicas=world_size, shuffle=True)
    sampler2 = DistributedSampler(val_dataset, rank=rank, num_replicas=world_size)
    dist.init_process_group("nccl")
    train_kwargs = {"batch_size": args.batch_size, "sampler": sampler1}
    test_kwargs = {"batch_size": args.test_batch_size, "sampler": sampler2}
    cuda_kwargs = {"num_workers": 2, "pin_memory": True, "shuffle": False}
    train_kwargs.update(cuda_kwargs)
    test_kwargs.update(cuda_kwargs)
    train_loader = torch.utils.data.DataLoader(train_dataset, **train_kwargs)
    val_loader = torch.utils.data.DataLoader(val_dataset, **test_kwargs)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={T5Block})
    torch.cuda.set_device(local_rank)
    model = FSDP(model, auto_wrap_policy=policy, device_id=torch.cuda.current_device())
    optimizer = optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    best_val_loss = float("inf")
    for epoch in range(1, args.epochs + 1):
        train(model, rank, train_loader, optimizer, epoch, sampler1)
        curr_val_loss = validation(model, rank, val_loader)
        scheduler.step()
        if args.save_model and curr_val_loss < best_val_loss:
            policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
                cpu_state = model.state_dict()
            if rank == 0:
                torch.save(cpu_state, f"T5-model-{epoch}.pt")
        best_val_loss = min(best_val_loss, curr_val_loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--test-batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-model", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    fsdp_main(arguments)
