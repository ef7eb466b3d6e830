"""All bytes from a rank decode to frames and values, or raise `WireError` but no other error."""

import json
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mutations import grafted, mutated

from gradsync.ranks.protocol import events, values, wire
from gradsync.ranks.protocol.wire import Decoder, Frame, WireError, pack
from gradsync.records import Collective, Event

VALUES = [
    {"loss": 0.5, "steps": [1, 2, 3], "names": ("a", "b")},
    [torch.arange(6.0).reshape(2, 3), torch.zeros(0, 3), torch.tensor(True)],
    {1: np.arange(4, dtype=">i2"), (1, 2): {"deep": [[[None]]]}},
    {frozenset({1, 2}), b"bytes", "text", 2**70},
]
ENTERED = Event(
    rank=0, kind="enter", call=1, seconds=0.5, thread=0, others=1,
    collective=Collective(
        op="all_reduce", group="world", members=(0, 1), shapes=((2, 3),), dtype="float32",
        reduce="sum", root=None, peer=None, tag=0, sends=(1, 2), receives=(3,),
        label=None, where="template_trainer.py:8",
    ),
)  # fmt: skip
ANSWERS = [(tree, b"".join(pieces)) for tree, pieces in (values.encode(value) for value in VALUES)]
FRAMES = [
    *(pack("answer", {"value": tree}, body) for tree, body in ANSWERS),
    pack("events", {"events": [events.Writer().row(ENTERED)], "asks": True}),
    pack("raised", {"type": "ValueError", "message": "no", "frames": [["a.py:1", "f", "g()"]]}),
    pack("ready"),
]
conversations = st.lists(st.sampled_from(FRAMES), min_size=1, max_size=4).map(b"".join)
sizes = st.sampled_from([0, 1, 7, 2**16, 2**24, 2**24 + 1, 2**28, 2**28 + 1, 2**31, 2**32 - 1])


def received(data, cuts):
    """Return the frames in these pieces of input, up to the first violation of the protocol."""
    ends = sorted({*(cut for cut in cuts if cut < len(data)), len(data)})
    decoder, frames = Decoder(), []
    with suppress(WireError):
        for start, end in zip([0, *ends], ends, strict=False):
            frames.extend(decoder.feed(data[start:end]))
    return frames


def understood(frame):
    """Decode a frame as the trusted side does; an invalid frame is refused."""
    with suppress(WireError):
        if frame.kind == "answer":
            values.decode(frame.header.get("value"), frame.body)
        elif frame.kind == "events":
            assert all(type(event) is Event for event in events.Reader(0).read(frame))


@given(mutated(conversations), st.lists(st.integers(0, 2000), max_size=5))
def test_a_broken_stream_is_decoded_or_refused(data, cuts):
    frames = received(data, cuts)

    assert all(type(frame.kind) is str and type(frame.header) is dict for frame in frames)
    assert sum(wire.PREFIX.size + len(frame.body) for frame in frames) <= len(data)
    for frame in frames:
        understood(frame)


@given(mutated(conversations), st.lists(st.integers(0, 2000), max_size=5))
def test_the_split_of_the_input_makes_no_difference(data, cuts):
    in_pieces, at_once = (
        [(frame.kind, frame.header, bytes(frame.body)) for frame in received(data, some)]
        for some in (cuts, [])
    )

    assert repr(in_pieces) == repr(at_once)  # a header may contain NaN


@given(sizes, sizes, st.binary(max_size=40))
def test_false_sizes_take_no_memory(head, body, rest):
    data = struct.pack("!II", head, body) + rest
    tracemalloc.start()
    try:
        received(data, [])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**20


@given(grafted(st.sampled_from([tree for tree, _ in ANSWERS])), st.sampled_from(ANSWERS))
def test_a_broken_value_is_decoded_or_refused(tree, answer):
    _, body = answer
    for data in (body, b"", body + b"x"):
        understood(Frame("answer", {"value": tree}, data))


@given(grafted(st.sampled_from([tree for tree, _ in ANSWERS])), mutated(conversations))
def test_decoded_values_are_plain_data(tree, body):
    try:
        value = values.decode(json.loads(json.dumps(tree)), body[: len(body) // 2])
    except WireError:
        return

    values.encode(value)  # raises TypeError for anything else


@given(grafted(st.just({"events": [events.Writer().row(ENTERED)] * 2, "asks": True})))
def test_broken_events_are_decoded_or_refused(header):
    understood(Frame("events", header if isinstance(header, dict) else {}))


@pytest.mark.parametrize(
    "frame", FRAMES, ids=["plain", "tensors", "arrays", "sets", "events", "raised", "ready"]
)
def test_frames_are_valid_before_mutation(frame):
    assert len(received(frame, [])) == 1
