"""Mistakes in rows of packed documents, and in the mask that separates the documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradsync.records import Diagnosis
from gradsync.text import counted

PACKING, MASK = "Packing documents", "Documents must not see each other"
Rows = list[list[int]]


def packed(stream: Sequence[int], length: int, step: int | None = None) -> Rows:
    """Return all whole rows of `length` + 1 tokens that begin every `step` tokens."""
    step = length if step is None else step
    return [
        list(stream[start : start + length + 1]) for start in range(0, len(stream) - length, step)
    ]


def stream_of(documents: Sequence[Sequence[int]], eos: int) -> list[int]:
    return [token for document in documents for token in (*document, eos)]


def diagnose_rows(
    rows: Rows, documents: Sequence[Sequence[int]], length: int, eos: int
) -> Diagnosis | None:
    """Return the diagnosis of the rows that were made of some documents, None if right."""
    stream = stream_of(documents, eos)
    right = packed(stream, length)
    if rows == right:
        return None
    bare = [token for document in documents for token in document]
    filled = [document for document in documents if document]
    alone = [row for d in documents for row in packed([*d, eos], length)]
    code, text = "tokens-lost", ""
    for wrong, its_code, its_text in (
        (
            packed(stream, length, length + 1),
            "tokens-lost",
            "The rows do not overlap, so the first token of each row is never a target. A row must "
            "begin with the last token of the previous row.",
        ),
        (
            packed(stream, length, 1),
            "tokens-misplaced",
            "A row begins at every token, so each token is a target several times. The next row "
            "must begin with the last token of this row.",
        ),
        (
            right[: len(rows)],
            "tokens-lost",
            f"Rows are missing at the end: {len(rows)} of {counted(len(right), 'row')} are "
            "returned. Only tokens that do not fill a whole row are dropped, and the last document "
            "has an `eos`, too. Rows overlap, so each row after the first needs only L new tokens.",
        ),
        (
            packed(bare, length),
            "documents-mixed",
            "The documents follow each other without `eos`, so nothing shows where one ends. Add "
            "`eos` after every document.",
        ),
        (
            packed([token for d in documents for token in (eos, *d)], length),
            "documents-mixed",
            "`eos` comes before each document. It must follow each document, also the last one.",
        ),
        (
            packed(stream_of(filled, eos), length),
            "documents-mixed",
            "The `eos` of an empty document is missing. It is followed by `eos`, too.",
        ),
        (
            packed(stream_of(documents, 0), length),
            "documents-mixed",
            f"A 0 follows each document, but `eos` is {eos}. Use the argument.",
        ),
        (
            alone,
            "tokens-lost",
            "Each document is cut on its own, and the tokens at its end that do not fill a row are "
            "lost. Put all documents into one stream first, and then cut the stream.",
        ),
    ):
        if rows == wrong and not text:
            code, text = its_code, its_text
    if not text:
        code, text = _by_counts(rows, right, length)
    case = f"{counted(len(documents), 'document')} with {len(stream)} tokens and their ends, L = "
    return Diagnosis(code, (), f"{case}{length}: {text}", guide=PACKING)


def _by_counts(rows: Rows, right: Rows, length: int) -> tuple[str, str]:
    """Return the code and the text for rows that no known mistake explains."""
    if len(rows) > len(right) and rows[: len(right)] == right:
        text = "The tokens that do not fill a row are returned, too. Drop them, without padding."
        return "padding-wrong", text
    targets, wanted = (sorted(token for row in some for token in row[1:]) for some in (rows, right))
    if targets == wanted:
        text = "All tokens are there, but not in the order of the stream. Keep it in every row."
        return "tokens-misplaced", text
    i = next((i for i, (row, its) in enumerate(zip(rows, right, strict=False)) if row != its), 0)
    return ("tokens-lost" if len(targets) < len(wanted) else "tokens-misplaced"), (
        f"Row {i} is {rows[i]}, but should be {right[i]}. Row i has the tokens i * {length} to "
        f"(i + 1) * {length} of the stream."
    )


def mask_of(rows: np.ndarray, eos: int) -> np.ndarray:
    """Return the mask of the contract: bool (batch, q, k)."""
    ends = (rows == eos).astype(int)
    document = ends.cumsum(axis=1) - ends
    same = document[:, :, None] == document[:, None, :]
    return np.tril(same)


def diagnose_mask(mask: np.ndarray, rows: np.ndarray, eos: int) -> Diagnosis | None:
    """Return the diagnosis of a bool mask for rows of tokens, None if it is right."""
    right = mask_of(rows, eos)
    if np.array_equal(mask, right):
        return None
    ends = (rows == eos).astype(int)
    after = ends.cumsum(axis=1)  # as if an eos belonged to the next document
    with_next = np.tril(after[:, :, None] == after[:, None, :])
    filled = (np.insert(ends, 0, 0, axis=1)[:, :-1] & ~ends).cumsum(axis=1)  # not empty documents
    without_empty = np.tril(filled[:, :, None] == filled[:, None, :])
    later = np.triu(np.ones_like(mask[0]), 1)
    extra = mask & ~right
    code, text = "documents-mixed", ""
    if np.array_equal(mask, ~right):
        code = "mask-inverted"
        text = (
            "The mask is true exactly where it should be false. True means that token q may see "
            "token k."
        )
    elif np.array_equal(mask, right.transpose(0, 2, 1)):
        code = "future-visible"
        text = "q and k are exchanged: `[b, q, k]` is about what token q sees, not token k."
    elif (extra & later).any():
        code = "future-visible"
        b, q, k = np.argwhere(extra & later)[0]
        text = (
            f"Token {q} sees token {k} of row {rows[b].tolist()}, which comes later. The model "
            "would learn to copy its target. Allow only k <= q."
        )
    elif np.array_equal(mask, with_next):
        text = (
            "An `eos` is counted as part of the document that follows it. It belongs to the "
            "document that it ends: count only the ends before it."
        )
    elif np.array_equal(mask, without_empty):
        text = (
            "An `eos` right after another `eos` is counted to the document before. It ends an "
            "empty document of its own, so it must see itself alone."
        )
    elif np.array_equal(mask, mask_of(rows, 0)):
        text = f"The documents end at each 0, but `eos` is {eos}. Use the argument."
    elif extra.any():
        b, q, k = np.argwhere(extra)[0]
        text = (
            f"Token {q} sees token {k} of row {rows[b].tolist()}, which belongs to another "
            "document. A document's logits must not depend on another document in its row."
        )
    else:
        b, q, k = np.argwhere(right & ~mask)[0]
        itself = " Every token sees itself." if q == k else ""
        code = "tokens-lost"
        text = (
            f"Token {q} does not see token {k} of row {rows[b].tolist()}, although it is in the "
            f"same document and not later.{itself}"
        )
    return Diagnosis(code, (), text, guide=MASK)
