"""Phase 3, first file: the sequences of tokens that a language model is trained on.

N is the world size (`num_replicas`), r is this rank, L is `sequence_length`. A token is an integer.
Read GUIDELINES.md, "Packing documents" to "A loader that can stop anywhere". `gradsync check` shows
your progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

### BEGIN SOLUTION
# isort: split
import numpy as np

### END SOLUTION


def pack_documents(documents: Sequence[Tensor], sequence_length: int, eos: int) -> Tensor:
    """Pack documents of any lengths into rows of equal length.

    The documents follow each other in one stream, each followed by `eos`. The stream is cut into
    rows of L + 1 tokens. A row begins with the token that the previous row ends with, so each token
    of the stream except the first is a target exactly once: `row[:-1]` are the inputs and `row[1:]`
    the targets. The tokens that do not fill a row are dropped.

    Args:
        documents: 1-D int64 tensors; a document may be empty.
        sequence_length: the number of targets in a row, L.
        eos: the token that ends a document.

    Returns:
        An int64 tensor of shape (sequences, L + 1).

    Raises:
        ValueError: if `sequence_length < 1`, or if the tokens do not fill a single row.
    """
    ### BEGIN SOLUTION
    if sequence_length < 1:
        raise ValueError(f"sequence_length must be at least 1, got {sequence_length}")
    end = torch.tensor([eos])
    parts = [part for document in documents for part in (document, end)]
    stream = torch.cat(parts) if parts else end[:0]  # (tokens,)
    if len(stream) <= sequence_length:
        raise ValueError(
            f"documents must have at least {sequence_length + 1} tokens with their ends to fill a "
            f"row of sequence_length {sequence_length}, got {len(stream)}"
        )
    return stream.unfold(0, sequence_length + 1, sequence_length).clone()  # (sequences, L + 1)
    ### END SOLUTION


def document_mask(inputs: Tensor, eos: int) -> Tensor:
    """Return which tokens each token may see: earlier ones of its own document, and itself.

    An `eos` belongs to the document that it ends.

    Args:
        inputs: int64 tokens of shape (batch, sequence).
        eos: the token that ends a document.

    Returns:
        A bool tensor of shape (batch, sequence, sequence). `[b, q, k]` is true if token q may see
        token k: if `k <= q` and both are in the same document.
    """
    ### BEGIN SOLUTION
    ends = (inputs == eos).long()
    document = ends.cumsum(dim=1) - ends  # (batch, sequence): the ends before this token
    same = document[:, :, None] == document[:, None, :]  # (batch, q, k)
    return same.tril()
    ### END SOLUTION


class TokenLoader:
    """Yields one rank's batches of `(inputs, targets)`; it can resume after any batch.

    A pass yields this rank's batches of one epoch. The epoch's order is a permutation of the
    sequences that depends only on `(seed, epoch)`. Global batch b consists of the positions
    b * N * batch_size and following of this order. Rank r takes the positions r, r + N, r + 2N, ...
    of the global batch. A last global batch that is not complete is dropped. Epochs count from 0,
    and a new loader is at epoch 0.

    Args:
        sequences: int64 tokens of shape (sequences, L + 1), from `pack_documents`.
        batch_size: the number of sequences in a batch of one rank.
        num_replicas: the world size N.
        rank: this rank, 0..N-1.
        seed: the seed of the permutations, the same on every rank.
    """

    def __init__(
        self, sequences: Tensor, batch_size: int, num_replicas: int, rank: int, *, seed: int = 0
    ) -> None:
        ### BEGIN SOLUTION
        self.sequences = sequences
        self.batch_size = batch_size
        self.num_replicas = num_replicas
        self.rank = rank
        self.seed = seed
        self.epoch = 0
        self.seen = 0  # positions of the epoch's order that all ranks together have yielded
        self.start = 0  # position at which the next pass starts
        ### END SOLUTION

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0.

        The epoch of a loaded state keeps the resumed position; any other epoch is complete.
        """
        ### BEGIN SOLUTION
        if epoch != self.epoch:
            self.epoch, self.seen, self.start = epoch, 0, 0
        ### END SOLUTION

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's `(inputs, targets)`, each of shape (batch_size, L)."""
        ### BEGIN SOLUTION
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.sequences))
        together = self.batch_size * self.num_replicas
        first, self.start = self.start, 0  # only this pass is a resumed one
        for start in range(first, len(order) - together + 1, together):
            mine = order[start : start + together][self.rank :: self.num_replicas]
            rows = self.sequences[mine]  # (batch_size, L + 1)
            self.seen = start + together  # before the yield: the loop body may call `state_dict`
            yield rows[:, :-1], rows[:, 1:]
        ### END SOLUTION

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was yielded, as plain data."""
        ### BEGIN SOLUTION
        return {"epoch": self.epoch, "seen": self.seen}
        ### END SOLUTION

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass yield the rest of an epoch, from the state of any rank's loader.

        N and the batch size may have changed: no sequence of the epoch is used twice, and only the
        last global batch, if it is not complete, is dropped. The pass after that is a complete
        epoch again.
        """
        ### BEGIN SOLUTION
        self.epoch, self.seen = state["epoch"], state["seen"]
        self.start = self.seen
        ### END SOLUTION


def main() -> None:
    """Pack three documents, and print their rows, a mask, and the batches of two ranks."""
    documents = [torch.tensor([11, 12, 13]), torch.tensor([21, 22]), torch.tensor([31, 32, 33])]
    rows = pack_documents(documents, sequence_length=2, eos=0)
    print(f"rows: {rows.tolist()}")
    print(f"mask of [11, 12, 0, 21]:\n{document_mask(torch.tensor([[11, 12, 0, 21]]), 0).int()}")
    for rank in range(2):
        batches = [inputs.tolist() for inputs, _ in TokenLoader(rows, 1, 2, rank)]
        print(f"inputs of rank {rank} of 2: {batches}")


if __name__ == "__main__":
    main()
