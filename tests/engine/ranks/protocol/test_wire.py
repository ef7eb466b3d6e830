"""Frames: read from pieces of any size; invalid data raises only `WireError`."""

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsync.ranks.protocol import wire
from gradsync.ranks.protocol.wire import Decoder, Frame, WireError, pack

names = st.text(max_size=20)
headers = st.dictionaries(names.filter(lambda name: name != "kind"), st.integers() | names)


@given(kind=names, header=headers, body=st.binary(), cuts=st.lists(st.integers(0, 200)))
def test_frames_are_read_from_pieces_of_any_size(kind, header, body, cuts):
    data = 2 * pack(kind, header, body)
    ends = sorted({*(cut for cut in cuts if cut < len(data)), len(data)})
    decoder = Decoder()

    frames = [
        frame
        for start, end in zip([0, *ends], ends, strict=False)
        for frame in decoder.feed(data[start:end])
    ]

    assert frames == 2 * [Frame(kind, header, body)]


@given(st.binary())
def test_garbage_raises_only_wire_errors(data):
    try:
        frames = list(Decoder().feed(data))
    except WireError:
        return

    assert all(type(frame.kind) is str for frame in frames)


@given(st.binary(max_size=100))
def test_a_header_of_garbage_raises_only_wire_errors(head):
    try:
        [frame] = Decoder().feed(wire.PREFIX.pack(len(head), 0) + head)
    except WireError:
        return

    assert type(frame.kind) is str


def test_half_a_frame_waits_for_the_rest():
    assert list(Decoder().feed(pack("answer", body=b"1234")[:-1])) == []


@pytest.mark.parametrize("sizes", [(wire.MAX_HEADER + 1, 0), (2, wire.MAX_ANSWER + 1)])
def test_a_frame_over_the_limit_is_refused_before_it_arrives(sizes):
    with pytest.raises(WireError, match="over the limit"):
        next(Decoder().feed(wire.PREFIX.pack(*sizes)))


@pytest.mark.parametrize(
    "head",
    [b"", b"[]", b"{}", b'{"kind": 3}', b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000],
    ids=["empty", "list", "no kind", "number", "torn", "bytes", "deep", "huge number"],
)
def test_an_invalid_header_is_refused(head):
    with pytest.raises(WireError):
        next(Decoder().feed(wire.PREFIX.pack(len(head), 0) + head))


def test_a_frame_over_the_limit_is_not_sent():
    with pytest.raises(WireError, match=r"'answer' frame of .* bytes is over the limit"):
        wire.head("answer", {}, wire.MAX_ANSWER + 1)


def test_a_rank_receives_its_task():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(pack("task", {"rank": 1}, b"payload"))

        assert wire.receive(theirs) == Frame("task", {"rank": 1}, b"payload")


@pytest.mark.parametrize("cut", [0, 3, 12, -1])
def test_a_rank_notices_when_the_trusted_side_has_closed(cut):
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(pack("task", {"rank": 1}, b"payload")[:cut])

        assert wire.receive(theirs) is None


def test_a_frame_before_garbage_is_read():
    assert next(Decoder().feed(pack("ready") + b"garbage" * 10)) == Frame("ready", {})


def test_a_frame_is_readable_json():
    size, _ = wire.PREFIX.unpack_from(pack("ready", {"rank": 1}))

    assert json.loads(pack("ready", {"rank": 1})[-size:]) == {"kind": "ready", "rank": 1}
