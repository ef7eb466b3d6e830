"""A script for one process (local rank -1) or several, with data that one rank prepares."""

import argparse
import logging
import os
import random

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm, trange
from transformers import AutoModelForSequenceClassification

logger = logging.getLogger(__name__)


def set_seed(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)


def load_examples(args):
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    cached = os.path.join(args.data_dir, "cached_train")
    if os.path.exists(cached):
        features = torch.load(cached, map_location="cpu")
    else:
        features = torch.arange(1000)
        if args.local_rank in [-1, 0]:
            torch.save(features, cached)
    if args.local_rank == 0:
        torch.distributed.barrier()
    return TensorDataset(features, features % 2)


def train(args, dataset, model):
    if args.local_rank in [-1, 0]:
        writer = SummaryWriter()
    sampler = RandomSampler(dataset) if args.local_rank == -1 else DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=args.batch_size)
    steps = len(loader) // args.gradient_accumulation_steps * args.epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
    if args.local_rank != -1:
        model = DistributedDataParallel(
            model, device_ids=[args.local_rank], output_device=args.local_rank
        )
    global_step, total = 0, 0.0
    model.zero_grad()
    for epoch in trange(args.epochs, desc="epoch", disable=args.local_rank not in [-1, 0]):
        if args.local_rank != -1:
            sampler.set_epoch(epoch)
        for step, batch in enumerate(tqdm(loader, disable=args.local_rank not in [-1, 0])):
            model.train()
            batch = tuple(t.to(args.device) for t in batch)
            outputs = model(input_ids=batch[0], labels=batch[1])
            loss = outputs[0] / args.gradient_accumulation_steps
            loss.backward()
            total += loss.item()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                scheduler.step()
                model.zero_grad()
                global_step += 1
                if args.local_rank in [-1, 0] and global_step % 50 == 0:
                    writer.add_scalar("loss", total / global_step, global_step)
                    to_save = model.module if hasattr(model, "module") else model
                    to_save.save_pretrained(args.output_dir)
            if 0 < args.max_steps < global_step:
                break
    return model


def evaluate(args, dataset, model):
    loader = DataLoader(dataset, sampler=SequentialSampler(dataset), batch_size=args.batch_size)
    correct = 0
    for batch in tqdm(loader):
        with torch.no_grad():
            logits = model(input_ids=batch[0].to(args.device))[0]
        correct += (logits.argmax(1).cpu() == batch[1]).sum().item()
    logger.info("accuracy %f", correct / len(dataset))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    if args.local_rank == -1:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        torch.cuda.set_device(args.local_rank)
        device = torch.device("cuda", args.local_rank)
        torch.distributed.init_process_group(backend="nccl")
    args.device = device
    set_seed(args)
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    model.to(args.device)
    dataset = load_examples(args)
    model = train(args, dataset, model)
    if args.local_rank in [-1, 0]:
        evaluate(args, dataset, model.module if hasattr(model, "module") else model)
    if args.local_rank != -1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
