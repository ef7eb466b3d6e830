"""Rank 0 alone reads and writes, after every step; what it read goes out as an object.

When a collective fails, each rank answers a roll call in the store.
"""

from datetime import timedelta


def train(info, *args, **options):
    try:
        return _train(info, *args, **options)
    except RuntimeError as error:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"here {info.rank}", "yes")
        gone = [r for r in range(info.world_size) if not _answers(store, r)]
        if gone:
            raise RuntimeError(f"Ranks {gone} do not answer") from error
        raise


def _answers(store, rank):
    try:
        store.wait([f"here {rank}"], timedelta(seconds=0.5))
    except RuntimeError:
        return False
    return True


def _train(
    info,
    model,
    train_dataset,
    val_dataset,
    *,
    epochs,
    batch_size,
    lr,
    seed=0,
    accumulation_steps=1,
    resume_from=None,
):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    told = [None]
    if dist.get_rank() == 0 and resume_from and Path(resume_from).is_file():
        told = [torch.load(resume_from, weights_only=True)]
    dist.broadcast_object_list(told, src=0)
    state = told[0] or {"epoch": 0, "seen": 0, "sum": 0.0}
    if "model" in state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    with torch.no_grad():
        for tensor in list(model.parameters()) + list(model.buffers()):
            dist.broadcast(tensor, src=0)

    def keep(epoch, seen, total):
        if resume_from is not None:
            if info.rank == 0:
                whole = {"epoch": epoch, "seen": seen, "sum": total}
                whole["model"], whole["optimizer"] = model.state_dict(), optimizer.state_dict()
                torch.save(whole, f"{resume_from}.new")
                os.rename(f"{resume_from}.new", resume_from)
            dist.barrier()

    averager = BucketedGradientAverager(model)
    history, epoch, seen, total = [], state["epoch"], state["seen"], state["sum"]
    while epoch < epochs:
        sampler = ResumableDistributedSampler(train_dataset, info.world_size, info.rank, seed=seed)
        sampler.resume(epoch, seen)
        model.train()
        for batch in DataLoader(train_dataset, batch_size, sampler=sampler):
            count = len(batch[1])
            micro = split_microbatches(
                batch, accumulation_steps if accumulation_steps < count else count
            )
            loss = train_step_accumulated(
                model, micro, nn.functional.cross_entropy, optimizer, averager
            )
            seen += count * info.world_size
            total += loss * count * info.world_size
            keep(epoch, seen, total)
        val = evaluate(model, val_dataset, nn.functional.cross_entropy, batch_size)
        history.append(dict(epoch=epoch, train_loss=total / seen))
        history[-1].update(val_loss=val["loss"], val_accuracy=val["accuracy"])
        if info.rank == 0:
            print(f"{epoch}: {val['accuracy']:.1%}", flush=True)
        epoch, seen, total = epoch + 1, 0, 0.0
        keep(epoch, seen, total)
    return history
