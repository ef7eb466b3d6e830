"""A share is a slice of a range."""


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Slice the range of all samples; a slice of a range is a range."""
    ends = [0]
    for other in range(rank + 1):
        # As many as a strided share would have: larger for the lower ranks.
        ends.append(ends[-1] + len(range(other, num_samples, num_replicas)))
    return range(num_samples)[ends[-2] : ends[-1]]


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """The rule of `shard_without_padding`, applied to rows."""
    rows = batch[0].shape[0]
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches is {num_microbatches}: fewer than one part")
    if num_microbatches > rows:
        raise ValueError(f"num_microbatches is {num_microbatches}: more than {rows} samples")
    parts = []
    for part in range(num_microbatches):
        share = shard_without_padding(rows, num_microbatches, part)
        parts.append(tuple(tensor[share.start : share.stop] for tensor in batch))
    return parts
