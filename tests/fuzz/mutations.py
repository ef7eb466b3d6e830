"""Mutations of valid bytes and trees: almost valid input is the most likely to break a reader."""

import copy

from hypothesis import strategies as st

# Numbers that often cause errors: as in a zip, and as a tar's octal and binary numbers.
NUMBERS = [0, 1, 2, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63]
TELLING = [
    *(number.to_bytes(size, order) for number in NUMBERS for size in (2, 4, 8)
      for order in ("big", "little") if number < 256**size),
    *(b"%011o\0" % number for number in NUMBERS if number < 8**11),
    *(b"\x80" + bytes(10) + b"\x01", b"\xff" * 12, b"\0" * 512),
    *(b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"),
    *(b"../", b"/", b"\\", b"\0", b"\n", b"\x1b[2J", b"phase2", b"size=-1\n", b"path="),
]  # fmt: skip
NODES = [
    *(None, True, -1, 0, 2**40, 2**40 + 1, 2**63, 2**64, 1.5, float("nan"), float("inf"), 10**300),
    *("", "x", "float32", "bool", "|O", "<f16", "list", [], {}, [[]], [1, 2], {"list": []}),
    *({"tensor": "float32", "shape": [0]}, {"array": "<f4", "shape": [0, 2**40]}),
    *({"bytes": 1}, {"dict": [[1, 2]]}, {"set": [1]}, {"kind": "x"}),
]


@st.composite
def mutated(draw, whole, most=6):
    """Draw bytes with some parts overwritten, removed, doubled or inserted."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 600)))
        some = draw(st.sampled_from(TELLING) | st.binary(max_size=16))
        change = draw(st.sampled_from(["overwrite", "insert", "cut", "double", "flip"]))
        if change == "overwrite":
            data[at : at + len(some)] = some
        elif change == "insert":
            data[at:at] = some
        elif change == "cut":
            del data[at:end]
        elif change == "double":
            data[at:at] = data[at:end]
        elif at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


@st.composite
def grafted(draw, trees, most=3):
    """Draw a JSON tree with some nodes replaced by others, or by parts of the tree."""
    tree = copy.deepcopy(draw(trees))
    for _ in range(draw(st.integers(0, most))):
        places = list(_places(tree))
        if not places:
            return draw(st.sampled_from(NODES))
        holder, key = draw(st.sampled_from(places))
        other, its_key = draw(st.sampled_from(places))
        node = draw(st.sampled_from(NODES)) if draw(st.booleans()) else other[its_key]
        holder[key] = copy.deepcopy(node)
    return tree


def _places(tree):
    """Yield the position of each node: its container, and its key or index."""
    keys = range(len(tree)) if isinstance(tree, list) else tree if isinstance(tree, dict) else ()
    for key in list(keys):
        yield tree, key
        yield from _places(tree[key])
