"""Phase 2, first file: shares that can be resumed, that repeat nothing, and parts of a batch.

Words used here: N is the world size (`num_replicas`), r this rank, M the number of samples.
Read GUIDELINES.md, "Resumable shares" to "Microbatches"; `gradsync check` says how far you are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized

from torch import Tensor
from torch.utils.data import Sampler


class ResumableDistributedSampler(Sampler[int]):
    """The indices of one rank's share of a dataset, strided, and able to go on in mid-epoch.

    Rank r takes positions r, r+N, r+2N, ... of the epoch's order (0..M-1, or a permutation of it),
    which is padded at its end with its own beginning, repeated as often as needed, or cut to a
    multiple of N with `drop_last`. M=10, N=4, no shuffle: `[0,4,8] [1,5,9] [2,6,0] [3,7,1]`.

    The permutation depends on `(seed, epoch)` alone: the same on every rank, in every process, on
    every run, and for every world size. The global random state neither matters to it nor is
    changed by it. Epochs count from 0, and a new sampler is at epoch 0.

    Args:
        dataset: anything with a length M.
        num_replicas: the world size N.
        rank: this rank, 0..N-1.
        shuffle: permute the samples in each epoch.
        seed: another seed gives other permutations; the same on every rank.
        drop_last: cut what does not fill a row of N instead of padding it.

    Raises:
        ValueError: naming the argument, for `num_replicas < 1`, a `rank` outside 0..N-1, or an
            empty `dataset`.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        # TODO: about 14 lines; `gradsync hint phase2/ResumableDistributedSampler` if you are stuck
        raise NotImplementedError("phase2/ResumableDistributedSampler")

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`, counted from 0: all of it, or the resumed rest."""
        # TODO: about 3 lines; `gradsync hint phase2/ResumableDistributedSampler` if you are stuck
        raise NotImplementedError("phase2/ResumableDistributedSampler")

    def resume(self, epoch: int, samples_seen: int) -> None:
        """Make the next pass what is left of `epoch` after its first `samples_seen` positions.

        The global order is that of all M samples, before padding or cutting. The current ranks
        share the rest; their number may differ from before. The rest is padded with its own
        beginning or cut, as a whole epoch is: with `drop_last`, M=10, N=3 and 4 samples seen, six
        are left and each rank gets two. The pass after it is a whole epoch again.
        """
        # TODO: about 2 lines; `gradsync hint phase2/ResumableDistributedSampler` if you are stuck
        raise NotImplementedError("phase2/ResumableDistributedSampler")

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices of the next pass."""
        # TODO: about 4 lines; `gradsync hint phase2/ResumableDistributedSampler` if you are stuck
        raise NotImplementedError("phase2/ResumableDistributedSampler")

    def __len__(self) -> int:
        """Return how many indices the next pass yields, on every rank."""
        # TODO: about 3 lines; `gradsync hint phase2/ResumableDistributedSampler` if you are stuck
        raise NotImplementedError("phase2/ResumableDistributedSampler")


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Return rank r's contiguous part of `range(num_samples)`: disjoint parts that cover all.

    Their sizes differ by at most one, the larger ones first: 10 on 4 ranks are 3, 3, 2, 2. A rank
    may get nothing.
    """
    # TODO: about 3 lines; `gradsync hint phase2/shard_without_padding` if you are stuck
    raise NotImplementedError("phase2/shard_without_padding")


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Split each tensor of a batch along dim 0 into parts, in order: views, not copies.

    Their sizes differ by at most one, the larger ones first.

    Raises:
        ValueError: for more parts than samples, or fewer than one.
    """
    # TODO: about 8 lines; `gradsync hint phase2/split_microbatches` if you are stuck
    raise NotImplementedError("phase2/split_microbatches")


def main() -> None:
    """Print each rank's share of 10 samples on 4 ranks, whole and resumed on 3 after 4 samples."""
    for rank in range(4):
        sampler = ResumableDistributedSampler(range(10), 4, rank, shuffle=False)
        print(f"rank {rank} of 4: {list(sampler)}")
    for rank in range(3):
        sampler = ResumableDistributedSampler(range(10), 3, rank, shuffle=False)
        sampler.resume(epoch=0, samples_seen=4)
        print(f"rank {rank} of 3, resumed after 4 samples: {list(sampler)}")


if __name__ == "__main__":
    main()
