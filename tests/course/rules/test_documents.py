"""Rows of packed documents and masks: right ones pass, each known mistake gets its code."""

import numpy as np
import pytest

from support.rules.documents import diagnose_mask, diagnose_rows, mask_of, packed, stream_of

DOCUMENTS = [[11, 12, 13], [], [21, 22], [31, 32, 33]]
ROWS = np.array([[11, 12, 0, 21, 0], [1, 2, 3, 4, 5]])


def test_right_rows_pass_for_all_lengths():
    stream = stream_of(DOCUMENTS, 0)

    for length in range(1, len(stream)):
        assert diagnose_rows(packed(stream, length), DOCUMENTS, length, 0) is None


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([[11, 12, 13], [0, 0, 21], [22, 0, 31], [32, 33, 0]], "tokens-lost"),
        ([[11, 12, 13], [13, 21, 22], [22, 31, 32]], "documents-mixed"),
        ([[11, 12, 13], [13, 0, 21], [21, 22, 0], [0, 31, 32], [32, 33, 0]], "documents-mixed"),
        ([[11, 12, 13], [12, 13, 0]], "tokens-lost"),
        ([[12, 11, 13], [13, 0, 0], [0, 21, 22], [22, 0, 31], [31, 32, 33]], "tokens-misplaced"),
    ],
)
def test_wrong_rows_get_their_code(rows, code):
    assert diagnose_rows(rows, DOCUMENTS, 2, 0).code == code


def test_rows_with_another_end_are_recognised():
    rows = packed(stream_of(DOCUMENTS, 0), 2)

    assert "`eos` is 9" in diagnose_rows(rows, DOCUMENTS, 2, 9).explanation


def test_rows_with_padding_are_recognised():
    right = packed(stream_of(DOCUMENTS, 0), 3)

    assert diagnose_rows([*right, [33, 0, 0, 0]], DOCUMENTS, 3, 0).code == "padding-wrong"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda right: right, None),
        (lambda right: ~right, "mask-inverted"),
        (lambda right: right.transpose(0, 2, 1), "future-visible"),
        (lambda right: right | np.eye(5, k=1, dtype=bool), "future-visible"),
        (lambda right: np.tril(np.ones_like(right)), "documents-mixed"),
        (lambda right: right & ~np.eye(5, dtype=bool), "tokens-lost"),
    ],
)
def test_masks_get_their_code(change, code):
    found = diagnose_mask(change(mask_of(ROWS, 0)), ROWS, 0)

    assert (found and found.code) == code


def test_masks_with_another_end_or_without_empty_documents_are_recognised():
    rows = np.array([[11, 0, 9, 9, 21]])
    mask = mask_of(rows, 9)
    mask[0, 3, :3] = True  # the second 9 is counted to the document before

    assert "empty document" in diagnose_mask(mask, rows, 9).explanation
    assert "`eos` is 9" in diagnose_mask(mask_of(rows, 0), rows, 9).explanation
