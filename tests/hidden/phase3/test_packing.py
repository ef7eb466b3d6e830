"""Documents packed into rows, and the mask that separates them again."""

from functools import partial

import numpy as np
import torch

from gradsync.testing import check, exercise, raise_mistake
from gradsync.text import full_stop
from support.probes import raised
from support.probes.returned import tensor_returned
from support.rules.documents import MASK, PACKING, diagnose_mask, diagnose_rows, mask_of

CASES = 6


def draw_documents(rng, *, empty=False):
    """Draw documents of random lengths; their tokens are from 1 to 99."""
    lengths = rng.integers(1, 12, int(rng.integers(3, 9)))
    documents = [rng.integers(1, 100, n).tolist() for n in lengths]
    return [*documents[:1], [], *documents[1:]] if empty else documents


def probe_rows(data_loader, cases):
    """Return the dtype, the shape and the rows of each case, and whether arguments were changed."""
    seen = []
    for documents, length, eos in cases:
        tensors = [torch.tensor(document, dtype=torch.int64) for document in documents]
        rows = data_loader.pack_documents(tensors, length, eos)
        rows = tensor_returned(rows, "pack_documents")
        same = [tensor.tolist() for tensor in tensors] == documents
        seen.append([str(rows.dtype), list(rows.shape), rows.tolist(), same])
    return seen


def check_rows(ranks, cases):
    [seen] = ranks(probe_rows, 1, process_group=False, cases=cases)

    for (documents, length, eos), (dtype, shape, rows, same) in zip(cases, seen, strict=True):
        check(
            len(shape) == 2 and shape[1] == length + 1 and dtype == "torch.int64",
            "wrong-length",
            f"pack_documents with sequence_length={length} returns {dtype} of the shape {shape}. "
            f"It must return int64 of the shape (sequences, {length + 1}): the inputs of a row are "
            f"its first {length} tokens, and the targets its last {length}.",
            guide=PACKING,
        )
        raise_mistake(diagnose_rows(rows, documents, length, eos))
        check(
            same,
            "tensors-replaced",
            "pack_documents changes the documents that it was given. Leave them as they are.",
            guide=PACKING,
        )


@exercise("phase3/pack_documents", points=1.25)
def test_every_token_but_the_first_is_a_target_once(ranks, rng):
    """The stream of documents and their ends is cut into rows that overlap by one token."""
    cases = [(draw_documents(rng), int(rng.integers(2, 9)), 0) for _ in range(CASES)]

    check_rows(ranks, cases)


@exercise("phase3/pack_documents", points=0.75)
def test_documents_of_any_length_are_packed(ranks, rng):
    """Empty documents, a single document, rows of one token, and any number as `eos` are right."""
    single = rng.integers(1, 100, 9).tolist()
    cases = [
        (draw_documents(rng, empty=True), int(rng.integers(2, 7)), 0),
        ([single], 3, 0),
        (draw_documents(rng), 1, 0),
        (draw_documents(rng), 4, int(rng.integers(100, 50_000))),
        ([[], [], []], 2, 7),
    ]

    check_rows(ranks, cases)


@exercise("phase3/pack_documents", points=0.5)
def test_the_incomplete_rest_is_dropped(ranks, rng):
    """If the tokens fill the last row exactly, it is there; with one token less, it is not."""
    length, rows = int(rng.integers(2, 7)), int(rng.integers(2, 5))
    tokens = rng.integers(1, 100, length * rows + 1).tolist()
    cases = [
        ([tokens[: length * rows]], length, 0),  # with its eos, one token after the last row
        ([tokens[: length * rows - 1]], length, 0),
        ([tokens], length, 0),
        ([tokens[:length]], length, 0),
    ]

    check_rows(ranks, cases)


def probe_refused(data_loader, cases):
    """Return for each case how it was refused: None is right, "no error" and so on is wrong."""
    data_loader.pack_documents([torch.tensor([1, 2, 3])], 2, 0)  # this one is accepted
    answers = []
    for documents, length in cases:
        tensors = [torch.tensor(document, dtype=torch.int64) for document in documents]
        error = raised(partial(data_loader.pack_documents, tensors, length, 0))
        right = isinstance(error, ValueError)
        got = f"{type(error).__name__}: {error}" if error else "no error"
        answers.append(None if right else got)
    return answers


@exercise("phase3/pack_documents", points=0.5)
def test_arguments_without_a_row_are_refused(ranks, rng):
    """If not a single row comes out, or if rows have no token, a ValueError is raised."""
    tokens = rng.integers(1, 100, int(rng.integers(2, 6))).tolist()
    cases = [([tokens], len(tokens) + 1), ([], 3), ([tokens], 0), ([tokens], -2), ([[]], 1)]

    [seen] = ranks(probe_refused, 1, process_group=False, cases=cases)

    for (documents, length), got in zip(cases, seen, strict=True):
        check(
            got is None,
            "bad-arguments-accepted",
            f"pack_documents({documents}, {length}, 0) raises {full_stop(str(got))} It must raise "
            "a ValueError.",
            guide=PACKING,
        )


def draw_rows(rng, batch, sequence, eos):
    rows = rng.integers(1, 50, (batch, sequence))
    rows[rng.random((batch, sequence)) < 0.25] = eos
    return rows


def probe_masks(data_loader, batches, eos):
    """Return the dtype, the shape and the values of each mask."""
    seen = []
    for rows in batches:
        mask = data_loader.document_mask(torch.from_numpy(rows), eos)
        mask = tensor_returned(mask, "document_mask")
        seen.append([str(mask.dtype), list(mask.shape), mask.bool().numpy()])
    return seen


def check_masks(ranks, batches, eos):
    [seen] = ranks(probe_masks, 1, process_group=False, batches=batches, eos=eos)

    for rows, (dtype, shape, mask) in zip(batches, seen, strict=True):
        wanted = [*rows.shape, rows.shape[1]]
        check(
            dtype == "torch.bool" and shape == wanted,
            "wrong-signature",
            f"document_mask returns {dtype} of the shape {shape} for tokens of the shape "
            f"{list(rows.shape)}. It must return torch.bool of the shape {wanted}.",
            guide=MASK,
        )
        raise_mistake(diagnose_mask(mask, rows, eos))


@exercise("phase3/document_mask", points=1.75)
def test_a_token_sees_earlier_tokens_of_its_document(ranks, rng):
    """In random rows, the mask is true for earlier tokens of the same document, and itself."""
    sizes = [(3, 12), (1, 20), (4, 7)]

    check_masks(ranks, [draw_rows(rng, *size, 0) for size in sizes], 0)


@exercise("phase3/document_mask", points=0.75)
def test_rows_without_an_end_and_ends_in_a_row_are_right(ranks, rng):
    """A row of one document is causal; several ends in a row are documents of one token each."""
    eos = int(rng.integers(60, 1000))
    whole = rng.integers(1, 50, (2, 9))
    ends = np.full((1, 5), eos)
    first, last = rng.integers(1, 50, (2, 1, 6))
    first[:, 0] = eos
    last[:, -1] = eos

    check_masks(ranks, [draw_rows(rng, 2, 8, eos), whole, ends, first, last], eos)


def probe_attention(data_loader, rows, changed, eos, features):
    """Return the attention's outputs for rows before and after one document was changed."""
    outputs = []
    for tokens in (rows, changed):
        mask = data_loader.document_mask(torch.from_numpy(tokens), eos)
        x = torch.from_numpy(features)[torch.from_numpy(tokens)]  # (batch, sequence, dim)
        outputs.append(torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask))
    return outputs


@exercise("phase3/document_mask", points=0.5)
def test_the_outputs_of_a_document_do_not_depend_on_another(ranks, rng):
    """With other tokens in one document, attention gives the others the same outputs."""
    eos = 0
    lengths = [int(n) for n in rng.integers(2, 5, 3)]
    row = [t for n in lengths for t in (*rng.integers(1, 30, n).tolist(), eos)]
    rows = np.array([row, row[::-1]])
    start = lengths[0] + 1
    changed = rows.copy()
    changed[0, start : start + lengths[1]] = rng.integers(30, 60, lengths[1])
    features = rng.standard_normal((60, 4))

    [seen] = ranks(
        probe_attention, 1, process_group=False, rows=rows, changed=changed, eos=eos,
        features=features,
    )  # fmt: skip

    before, after = (np.asarray(out) for out in seen)
    wanted = attention(features[rows], mask_of(rows, eos))
    kept = np.ones(len(row), bool)
    kept[start : start + lengths[1] + 1] = False
    check(
        np.allclose(before[0, kept], after[0, kept]),
        "documents-mixed",
        "When the tokens of the second document change, attention with your mask gives other "
        "documents of the row different outputs. They must not see each other.",
        guide=MASK,
    )
    check(
        np.allclose(before, wanted),
        "documents-mixed",
        "Attention with your mask differs from attention over each document alone.",
        guide=MASK,
    )


def attention(x, mask):
    """Return the attention of x (batch, sequence, dim) over itself."""
    scores = np.where(mask, x @ x.transpose(0, 2, 1) / np.sqrt(x.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ x
