"""Each checkpoint has a folder of its own with the loader's state; a small file names the newest."""


def train(
    info, model, sequences, *, steps, batch_size, lr, seed=0, compute_dtype=None, max_norm=1.0,
    resume_from=None,
):  # fmt: skip
    import json as js
    import shutil
    from time import monotonic

    sharded = FullyShardedModule(model, compute_dtype=compute_dtype)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=lr)
    loader = TokenLoader(sequences, batch_size, info.world_size, info.rank, seed=seed)
    scaler = LossScaler() if compute_dtype == torch.float16 else None
    done, epoch, history = 0, 0, []
    pointer = None if resume_from is None else Path(resume_from) / "newest.json"
    if pointer is not None and pointer.exists():
        folder = pointer.parent / js.loads(pointer.read_text())["folder"]
        done = load_sharded(folder, sharded, optimizer)
        extra = js.loads((folder / "loader.json").read_text())
        loader.load_state_dict(extra["loader"])
        epoch = extra["epoch"]
        if scaler is not None and extra["scaler"] is not None:
            scaler.load_state_dict(extra["scaler"])
    dist.barrier()

    def save():
        if pointer is None:
            return
        folder = pointer.parent / f"after-{done}"
        save_sharded(folder, sharded, optimizer, done)
        if info.rank == 0:
            extra = {
                "loader": loader.state_dict(),
                "epoch": epoch,
                "scaler": scaler.state_dict() if scaler else None,
            }
            (folder / "loader.json").write_text(js.dumps(extra))
            temporary = pointer.with_suffix(".new")
            temporary.write_text(js.dumps({"folder": folder.name}))
            temporary.replace(pointer)
            for old in pointer.parent.glob("after-*"):
                if old.name != folder.name:
                    shutil.rmtree(old)
        dist.barrier()

    sharded.train()
    while done < steps:
        loader.set_epoch(epoch)
        for inputs, targets in loader:
            began = monotonic()
            optimizer.zero_grad()
            loss = token_weighted_loss(sharded(inputs), targets)
            (scaler.scale(loss) if scaler else loss).backward()
            sharded.finish()
            if scaler:
                unit = float(scaler.scale(torch.ones(())))
                norm = clip_grad_norm_(sharded, max_norm * unit) / unit
                scaler.step(optimizer, sharded)
            else:
                norm = clip_grad_norm_(sharded, max_norm)
                optimizer.step()
            mean = loss.detach().double().clone()
            dist.all_reduce(mean)
            count = targets.numel() * info.world_size
            history.append(
                {
                    "step": done,
                    "loss": mean.item() / info.world_size,
                    "grad_norm": norm,
                    "tokens_per_second": count / max(1e-9, monotonic() - began),
                }
            )
            if info.rank == 0:
                print("step", done, "loss", history[-1]["loss"])
            done += 1
            if done >= steps:
                break
            if done % 50 == 0:
                save()
        else:
            epoch += 1
            continue
        break
    if history:
        save()
    return history
