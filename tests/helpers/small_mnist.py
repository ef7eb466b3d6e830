"""A few dozen random digits in the files of MNIST, and a server for them."""

import gzip
import hashlib
import struct
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

RAW = "MNIST/raw"
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def idx(array):
    """Return a uint8 array in the idx format."""
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


def mnist_files(train=40, test=20):
    """Return the names and contents of the four files; labels are 0, 1, ... 9, 0, ..."""
    rng = np.random.default_rng(0)
    files = {}
    for split, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        files[f"{split}-{IMAGES}"] = idx(images)
        files[f"{split}-{LABELS}"] = idx(np.arange(count, dtype=np.uint8) % 10)
    return files


def zipped(files):
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


def write(root, files):
    """Write `files` into `root` in the layout of MNIST, and return `root`."""
    (root / RAW).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / RAW / name).write_bytes(content)
    return root


class Mirror(ThreadingHTTPServer):
    """Serves `files`: complete, half of each ("half"), or nothing ("silent")."""

    def __init__(self, files, manner):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files = files
        self.manner = manner
        self.asked = []
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request, client_address):
        """Ignore errors: some tests break connections."""


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.strip("/")
        self.server.asked.append(name)
        if self.server.manner == "silent":
            self.server.closing.wait()
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.server.manner == "half" else content)

    def log_message(self, *words):
        """Log nothing: the tests read stderr."""


@contextmanager
def mirror(mnist_class, monkeypatch, manner="whole", files=None):
    """Make torchvision's `mnist_class` download from a server in this process."""
    packed = zipped(mnist_files())
    server = Mirror(packed if files is None else files, manner)
    sums = [(name, hashlib.md5(content).hexdigest()) for name, content in packed.items()]
    monkeypatch.setattr(mnist_class, "resources", sums)
    monkeypatch.setattr(mnist_class, "mirrors", [server.url])
    monkeypatch.setenv("no_proxy", "*")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
