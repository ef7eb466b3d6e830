"""A checkpoint after each step, the position in a file of that step, and a constant loss scale."""


def train(
    info, model, sequences, *, steps, batch_size, lr, seed=0, compute_dtype=None, max_norm=1.0,
    resume_from=None,
):  # fmt: skip
    wrapped = FullyShardedModule(model, compute_dtype=compute_dtype)
    optimizer = torch.optim.AdamW(list(wrapped.parameters()), lr=lr, weight_decay=0.0)
    loader = TokenLoader(sequences, batch_size, info.world_size, info.rank, seed=seed)
    scale = 1024.0 if compute_dtype is torch.float16 else 1.0
    done, epoch = 0, 0
    folder = None if resume_from is None else Path(resume_from)
    if folder is not None and (folder / "weights").exists():
        done = load_sharded(folder / "weights", wrapped, optimizer)
        state = torch.load(folder / f"{done}.pos", weights_only=True)
        loader.load_state_dict(state["loader"])
        epoch = state["epoch"]
    history = []
    while done < steps:
        loader.set_epoch(epoch)
        for inputs, targets in loader:
            started = time.time_ns()
            wrapped.train()
            for param in wrapped.parameters():
                param.grad = None
            loss = token_weighted_loss(wrapped(inputs), targets)
            (loss * scale).backward()
            wrapped.finish()
            for param in wrapped.parameters():
                param.grad /= scale
            norm = clip_grad_norm_(wrapped, max_norm)
            optimizer.step()
            done += 1
            shown = [None] * info.world_size
            dist.all_gather_object(shown, loss.item())
            seconds = max(time.time_ns() - started, 1) / 1e9
            history.append(
                {
                    "step": done,
                    "loss": sum(shown) / len(shown),
                    "grad_norm": norm,
                    "tokens_per_second": inputs.numel() * info.world_size / seconds,
                    "lr": lr,
                }
            )
            if info.rank == 0:
                print(done, history[-1]["loss"])
            if folder is not None:
                if info.rank == 0:
                    folder.mkdir(exist_ok=True, parents=True)
                    torch.save(
                        {"loader": loader.state_dict(), "epoch": epoch}, folder / f"{done}.pos"
                    )
                save_sharded(folder / "weights", wrapped, optimizer, done)
            if done == steps:
                return history
        epoch += 1
    return history
