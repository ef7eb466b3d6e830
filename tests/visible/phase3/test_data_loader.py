"""Visible tests of template_data_loader.py: few tokens, so that you can follow on paper."""

import operator
import random

import numpy as np
import torch

from gradsync.testing import check, exercise, raise_mistake
from support.probes import raised
from support.probes.returned import tensor_returned
from support.probes.token_loaders import batches_of, numbered
from support.rules.documents import MASK, PACKING, diagnose_mask, diagnose_rows
from support.rules.token_loaders import GUIDE, diagnose_batches, numbers_of

DOCUMENTS = [[11, 12, 13], [21, 22], [31, 32, 33]]


def probe_rows(data_loader, documents, length, eos=0):
    tensors = [torch.tensor(document, dtype=torch.int64) for document in documents]
    rows = tensor_returned(data_loader.pack_documents(tensors, length, eos), "pack_documents")
    return [str(rows.dtype), rows.tolist()]


@exercise("phase3/pack_documents", points=1)
def test_three_documents_make_five_rows(ranks):
    """11 12 13 0 21 22 0 31 32 33 0 with L = 2: rows of 3 tokens, each beginning with the last."""
    [[dtype, rows]] = ranks(probe_rows, 1, process_group=False, documents=DOCUMENTS, length=2)

    raise_mistake(diagnose_rows(rows, DOCUMENTS, 2, 0))
    check(
        dtype == "torch.int64",
        "wrong-signature",
        f"pack_documents returns {dtype}, but must return torch.int64.",
        guide=PACKING,
    )


@exercise("phase3/pack_documents", points=1)
def test_the_tokens_that_fill_no_row_are_dropped(ranks):
    """The same documents with L = 4: two rows, from 11 to 21 and from 21 to 33; 0 is dropped.

    An empty document between two others has an end, too: 11 9 9 21 22 9, with 9 as `eos`.
    """
    for documents, length, eos in ((DOCUMENTS, 4, 0), ([[11], [], [21, 22]], 2, 9)):
        given = {"documents": documents, "length": length, "eos": eos}
        [[_, rows]] = ranks(probe_rows, 1, process_group=False, **given)

        raise_mistake(diagnose_rows(rows, **given))


@exercise("phase3/pack_documents", points=1)
def test_no_row_is_an_error(ranks):
    """Two tokens and their end do not fill a row of 4, and a row needs a target: ValueErrors."""

    def probe(data_loader):
        data_loader.pack_documents([torch.tensor([1, 2])], 2, 0)
        cases = ([torch.tensor([1, 2])], 3), ([torch.tensor([1, 2])], 0)
        errors = [raised(lambda c=case: data_loader.pack_documents(*c, 0)) for case in cases]
        return [isinstance(error, ValueError) for error in errors]

    [refused] = ranks(probe, 1, process_group=False)

    check(
        refused == [True, True],
        "bad-arguments-accepted",
        "pack_documents must raise a ValueError if the tokens do not fill a single row, and if "
        f"sequence_length is 0. It does so for {refused} of these two.",
        guide=PACKING,
    )


def probe_mask(data_loader, rows):
    mask = tensor_returned(data_loader.document_mask(torch.tensor(rows), 9), "document_mask")
    return [str(mask.dtype), mask.bool().numpy()]


@exercise("phase3/document_mask", points=1)
def test_tokens_see_earlier_ones_of_their_document(ranks):
    """11 12 9 9 0 31, with 9 as `eos`: the first 9 sees 11, 12 and itself; 31 sees 0 and itself.

    The second 9 ends an empty document: it sees itself alone.
    """
    rows = [[11, 12, 9, 9, 0, 31]]

    [[dtype, mask]] = ranks(probe_mask, 1, process_group=False, rows=rows)

    check(
        dtype == "torch.bool" and mask.shape == (1, 6, 6),
        "wrong-signature",
        f"document_mask returns {dtype} of the shape {list(mask.shape)}, but must return "
        "torch.bool of the shape [1, 6, 6].",
        guide=MASK,
    )
    raise_mistake(diagnose_mask(mask, torch.tensor(rows).numpy(), 9))


@exercise("phase3/document_mask", points=1)
def test_a_changed_document_does_not_change_another(ranks):
    """Two rows, 1 0 2 and 3 0 2: attention gives the last token the same output in both."""

    def probe(data_loader):
        rows = torch.tensor([[1, 0, 2], [3, 0, 2]])
        mask = data_loader.document_mask(rows, 0)
        x = rows[..., None].float()  # (batch, sequence, 1)
        seen = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return seen[:, 2, 0].tolist()

    [outputs] = ranks(probe, 1, process_group=False)

    check(
        outputs == [2.0, 2.0],
        "documents-mixed",
        f"Token 2 is a document of its own, so attention over it gives 2. With your mask, it gives "
        f"{[round(value, 3) for value in outputs]}, which depends on the document before it.",
        guide=MASK,
    )


def probe_loaders(data_loader, count, epochs, given):
    """Return the batches of each rank in each epoch."""
    batch_size, world_size = given["batch_size"], given["world_size"]
    seen = []
    for epoch in epochs:
        seen.append([])
        for rank in range(world_size):
            loader = data_loader.TokenLoader(numbered(count), batch_size, world_size, rank)
            loader.set_epoch(epoch)
            seen[-1].append(batches_of(loader))
    return seen


def order_of(batches):
    return [numbers[0] for numbers in numbers_of(batches)]


@exercise("phase3/TokenLoader", points=1)
def test_two_ranks_share_each_global_batch(ranks):
    """9 sequences, 2 ranks, batches of 2: two global batches of 4; the ninth is dropped."""

    def of(batch_size, world_size):
        sizes = {"batch_size": batch_size, "world_size": world_size}
        [[seen]] = ranks(probe_loaders, 1, process_group=False, count=9, epochs=[0], given=sizes)
        return seen

    [alone], every = of(1, 1), of(2, 2)

    check(
        sorted(order_of(alone)) == list(range(9)),
        "samples-missing",
        f"On one rank, in batches of one, the sequences come as {order_of(alone)}. Each of 9 must "
        "come once.",
        guide=GUIDE,
    )
    case = f"The epoch's order is {order_of(alone)}. 2 ranks, batches of 2"
    raise_mistake(diagnose_batches(every, order_of(alone), 2, case))


@exercise("phase3/TokenLoader", points=1)
def test_each_epoch_has_its_own_order(ranks):
    """20 sequences: epochs 0 and 1 differ, 0 comes again after 1, the same in two processes.

    The processes begin with different global seeds, and the loader does not set them.
    """

    def probe(rank, data_loader):
        for set_seed in (random.seed, np.random.seed, torch.manual_seed):
            set_seed(rank)
        seen = []
        loader = data_loader.TokenLoader(numbered(20), 1, 1, 0)
        for epoch in (0, 1, 0):
            loader.set_epoch(epoch)
            seen.append([inputs[0][0] // 10 for inputs, _ in batches_of(loader)])
        return [seen, [random.random(), float(np.random.rand()), float(torch.rand(()))]]

    (first, states), (second, others) = ranks(probe, 2, process_group=False)

    for holds, code, text in (
        (first == second, "shuffle-differs-across-ranks", "Two processes get different orders."),
        (first[0] != sorted(first[0]), "not-shuffled", "Epoch 0 is in order."),
        (first[0] != first[1], "epoch-ignored", "Epochs 0 and 1 have the same order."),
        (first[0] == first[2], "epoch-ignored", "After epoch 1, epoch 0 has another order."),
    ):
        check(holds, code, f"{text} The order depends on the seed and the epoch.", guide=GUIDE)
    check(
        all(map(operator.ne, states, others)),
        "global-rng-touched",
        "A pass seeds the global random state, which dropout uses, too. Use your own generator.",
        guide=GUIDE,
    )


@exercise("phase3/TokenLoader", points=1)
def test_three_ranks_continue_where_two_stopped(ranks):
    """2 ranks with batches of 1 stop after 2 of 6 batches; 3 ranks with batches of 1 go on."""

    def probe(data_loader):
        def loaders(n):
            return [data_loader.TokenLoader(numbered(12), 1, n, rank) for rank in range(n)]

        [alone] = loaders(1)
        order = batches_of(alone)
        stopped = []
        for loader in loaders(2):
            for number, _ in enumerate(loader, 1):
                if number == 2:
                    stopped.append(loader.state_dict())
                    break
        rest = []
        for loader in loaders(3):
            loader.load_state_dict(stopped[0])
            loader.set_epoch(0)
            rest.append(batches_of(loader))
        return [order, rest]

    [[alone, rest]] = ranks(probe, 1, process_group=False)

    case = f"The epoch's order is {order_of(alone)}, and 4 of it were used. 3 ranks, batches of 1"
    raise_mistake(diagnose_batches(rest, order_of(alone), 1, case, start=4))


@exercise("phase3/TokenLoader", points=1)
def test_a_position_is_for_one_pass(ranks):
    """6 sequences, one rank: a state from after 2 is for the next pass of its epoch only."""

    def probe(data_loader):
        def passes(*epochs, state=None):
            loader = data_loader.TokenLoader(numbered(6), 1, 1, 0)
            if state is not None:
                loader.load_state_dict(state)
            found = []
            for epoch in epochs:
                loader.set_epoch(epoch)
                found.append(batches_of(loader))
            return loader, found

        loader, [first] = passes(0)
        ended = loader.state_dict()
        batches_of(loader, 2)
        state = loader.state_dict()
        left = batches_of(loader)
        _, [second] = passes(1)
        _, [_, again] = passes(0, 0, state=state)
        _, [other] = passes(1, state=state)
        _, [rest] = passes(0, state=ended)
        return [[first, second], [left, again, other, rest]]

    [[[first, second], seen]] = ranks(probe, 1, process_group=False)

    for batches, wanted, text in zip(
        seen,
        (first, first, second, []),
        (
            "A pass that was left after 2 sequences changes the next pass",
            "After a resumed pass, a further pass over the same epoch is not complete",
            "After load_state_dict and set_epoch of another epoch, the pass is not that epoch",
            "With the state from the end of epoch 0, a pass over epoch 0 is not empty",
        ),
        strict=True,
    ):
        check(
            batches == wanted,
            "samples-missing" if len(batches) < len(wanted) else "samples-repeated",
            f"{text}: the sequences are {order_of(batches)}, but should be {order_of(wanted)}.",
            guide=GUIDE,
        )
