"""Reading, checking and downloading MNIST's files."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from small_mnist import IMAGES, LABELS, RAW, idx, mirror, mnist_files, write, zipped

from gradsync import mnist
from gradsync.mnist import (
    DataError,
    download_mnist,
    holds_mnist,
    import_torchvision,
    read_mnist,
)

TRAIN_IMAGES, TRAIN_LABELS = f"train-{IMAGES}", f"train-{LABELS}"
TEST_IMAGES, TEST_LABELS = f"t10k-{IMAGES}", f"t10k-{LABELS}"


@pytest.fixture
def mnist_class():
    return import_torchvision().datasets.MNIST


def python(code, **environ):
    """Run `code` in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, **environ
    )


def test_four_files_give_a_training_and_a_test_set(tmp_path):
    (images, _), (test_images, _) = read_mnist(write(tmp_path, mnist_files(train=40, test=20)))

    assert (images.shape, test_images.shape) == ((40, 28, 28), (20, 28, 28))


def test_pixels_and_labels_equal_those_in_the_files(tmp_path):
    files = mnist_files()

    (images, labels), _ = read_mnist(write(tmp_path, files))

    assert images.tobytes() == files[TRAIN_IMAGES][16:]
    assert labels.tobytes() == files[TRAIN_LABELS][8:]


def test_gzipped_files_are_read(tmp_path):
    read = read_mnist(write(tmp_path / "zipped", zipped(mnist_files())))

    assert np.array_equal(read[0][0], read_mnist(write(tmp_path / "plain", mnist_files()))[0][0])


def test_reading_gzipped_files_does_not_change_the_folder(tmp_path):
    read_mnist(write(tmp_path, zipped(mnist_files())))

    assert {path.suffix for path in (tmp_path / RAW).iterdir()} == {".gz"}


WHOLE = mnist_files()
DAMAGE = {
    "half the images": (TRAIN_IMAGES, WHOLE[TRAIN_IMAGES][:9000]),
    "half the labels": (TEST_LABELS, WHOLE[TEST_LABELS][:15]),
    "an empty file": (TEST_IMAGES, b""),
    "a header cut short": (TRAIN_IMAGES, WHOLE[TRAIN_IMAGES][:10]),
    "too many bytes": (TEST_LABELS, WHOLE[TEST_LABELS] + b"\0"),
    "a page of a login portal": (TRAIN_LABELS, b"<html><body>Please sign in.</body></html>"),
    "a length beyond any memory": (TRAIN_LABELS, bytes([0, 0, 8, 1]) + b"\xff" * 12),
    "fewer labels than images": (TRAIN_LABELS, idx(np.zeros(39, np.uint8))),
    "images of another size": (TEST_IMAGES, idx(np.zeros((20, 14, 14), np.uint8))),
    "no images": (TEST_IMAGES, idx(np.zeros((0, 28, 28), np.uint8))),
    "a label beyond 9": (TEST_LABELS, idx(np.full(20, 10, np.uint8))),
}


@pytest.mark.parametrize(("name", "content"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_named(tmp_path, name, content):
    root = write(tmp_path, WHOLE | {name: content})

    with pytest.raises(DataError) as refused:
        read_mnist(root)

    assert str(root / RAW / name) in str(refused.value)


def test_a_missing_file_is_named(tmp_path):
    root = write(tmp_path, WHOLE)
    (root / RAW / TEST_LABELS).unlink()

    with pytest.raises(DataError, match=f"{TEST_LABELS} is missing"):
        read_mnist(root)


def test_a_truncated_gzip_is_named(tmp_path):
    packed = zipped(WHOLE)
    name = f"{TRAIN_IMAGES}.gz"
    root = write(tmp_path, packed | {name: packed[name][:5000]})

    with pytest.raises(DataError, match=f"{name} is damaged or incomplete"):
        read_mnist(root)


def test_a_gzip_of_half_a_file_is_named(tmp_path):
    root = write(tmp_path, zipped(WHOLE | {TRAIN_IMAGES: WHOLE[TRAIN_IMAGES][:9000]}))

    with pytest.raises(DataError, match=f"{RAW}/{TRAIN_IMAGES}.gz is damaged"):
        read_mnist(root)


def test_a_download_is_complete(tmp_path, mnist_class, monkeypatch):
    with mirror(mnist_class, monkeypatch):
        download_mnist(tmp_path)

    assert len(read_mnist(tmp_path)[0][1]) == 40


def test_a_download_shows_its_progress(tmp_path, mnist_class, monkeypatch, capsys):
    with mirror(mnist_class, monkeypatch):
        download_mnist(tmp_path)

    assert "100" in capsys.readouterr().err


def test_ranks_that_start_at_once_download_once(tmp_path, mnist_class, monkeypatch):
    with mirror(mnist_class, monkeypatch) as server, ThreadPoolExecutor(4) as ranks:
        obstacles = list(ranks.map(download_mnist, [tmp_path] * 4))

    # torchvision sends two requests for each file: one for its address, one for its content.
    assert obstacles == [None] * 4
    assert server.asked.count(f"{TRAIN_IMAGES}.gz") == 2


def test_a_broken_connection_leaves_no_files_of_mnist(tmp_path, mnist_class, monkeypatch):
    with mirror(mnist_class, monkeypatch, "half"):
        obstacle = download_mnist(tmp_path)

    assert obstacle is not None
    assert not holds_mnist(tmp_path)


def test_files_other_than_mnist_are_not_kept(tmp_path, mnist_class, monkeypatch):
    other = zipped(mnist_files(train=7))
    with mirror(mnist_class, monkeypatch, files=other):
        obstacle = download_mnist(tmp_path)

    assert "corrupted" in obstacle
    assert not holds_mnist(tmp_path)


def test_a_server_that_never_answers_is_given_up(tmp_path, mnist_class, monkeypatch):
    monkeypatch.setattr(mnist, "TIME_LIMIT", 0.3)
    with mirror(mnist_class, monkeypatch, "silent"):
        obstacle = download_mnist(tmp_path)

    assert obstacle == "timed out"
    assert socket.getdefaulttimeout() is None


def test_ranks_wait_for_a_silent_server_only_once(tmp_path, mnist_class, monkeypatch):
    monkeypatch.setattr(mnist, "TIME_LIMIT", 0.3)
    with mirror(mnist_class, monkeypatch, "silent") as server, ThreadPoolExecutor(4) as ranks:
        list(ranks.map(download_mnist, [tmp_path] * 4))

    assert len(server.asked) == 1


def test_unfinished_downloads_of_a_killed_process_are_removed(tmp_path, mnist_class, monkeypatch):
    write(tmp_path / "unfinished-abc", {TRAIN_IMAGES: b"half"})

    with mirror(mnist_class, monkeypatch):
        download_mnist(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["MNIST", "download.lock"]


def test_an_unwritable_cache_is_reported(tmp_path):
    (tmp_path / "file").touch()

    obstacle = download_mnist(tmp_path / "file" / "cache")

    assert "Not a directory" in obstacle


def test_torchvision_can_be_imported_with_any_build_of_torch():
    run = python(
        "from gradsync.data import import_torchvision\n"
        "assert import_torchvision() is import_torchvision()\n"
        "import torchvision\n"
        "torchvision.datasets.MNIST, torchvision.transforms.ToTensor()"
    )

    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_torchvision_can_be_imported_after_a_failed_import():
    run = python(
        "from gradsync.data import import_torchvision\n"
        "try:\n"
        "    import torchvision\n"
        "except RuntimeError:\n"
        "    pass\n"
        "import_torchvision().datasets.MNIST"
    )

    assert run.returncode == 0, run.stderr


WITH_OPERATORS = """
import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl(name, lambda dets, scores, iou_threshold: scores + 1, "CPU")
"""


@pytest.mark.slow
def test_a_torchvision_whose_operators_load_keeps_them(tmp_path):
    (tmp_path / "torchvision.py").write_text(WITH_OPERATORS)
    run = python(
        "import sys; sys.path.insert(0, '.')\n"
        "import torch\n"
        "from gradsync.data import import_torchvision\n"
        "import_torchvision()\n"
        "print(torch.ops.torchvision.nms(torch.ones(1, 4), torch.ones(1), 0.5).item())",
        cwd=tmp_path,
    )

    assert run.stdout == "2.0\n", run.stderr


@pytest.mark.slow
def test_other_import_errors_are_raised(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')")
    run = python(
        "import sys; sys.path.insert(0, '.')\n"
        "from gradsync.data import import_torchvision\n"
        "import_torchvision()",
        cwd=tmp_path,
    )

    assert run.stderr.endswith("RuntimeError: something else\n")


def test_reading_imports_no_torch(tmp_path):
    write(tmp_path, WHOLE)
    run = python(
        "import sys; from pathlib import Path; from gradsync.mnist import read_mnist\n"
        "read_mnist(Path('.'))\n"
        "sys.exit('torch' in sys.modules)",
        cwd=tmp_path,
    )

    assert run.returncode == 0, run.stderr
