"""Digits in memory: their source, their values, and loading them."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from small_mnist import LABELS, RAW, mirror, mnist_files, write
from torch.utils.data import DataLoader, Subset

from gradsync import data
from gradsync.course.catalogue import Course
from gradsync.data import DataError, digits, import_torchvision, mnist_root

BESIDE_THE_CHECKOUT = Path(__file__).parents[3] / "shared" / "mnist"
MNIST = Path(os.environ.get("GRADSYNC_DATA") or BESIDE_THE_CHECKOUT)
with_mnist = pytest.mark.skipif(not (MNIST / RAW).is_dir(), reason="MNIST is not on this machine")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the user; no folder is set, and nothing has been printed."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("GRADSYNC_DATA", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("gradsync.mnist.user_cache_path", lambda *_, **__: folder)
    course = tmp_path / "home" / "course"
    monkeypatch.setattr("gradsync.mnist.find_course", lambda: Course(course))
    data._say_once.cache_clear()
    return folder


@pytest.fixture
def small(tmp_path):
    return digits(write(tmp_path / "small", mnist_files()))


@pytest.fixture
def no_network(monkeypatch):
    mnist = import_torchvision().datasets.MNIST
    monkeypatch.setattr(mnist, "mirrors", ["http://127.0.0.1:1/"])
    monkeypatch.setenv("no_proxy", "*")


def pipeline():
    transforms = import_torchvision().transforms
    return transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])


# Sources


def test_the_given_folder_has_priority(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADSYNC_DATA", str(write(tmp_path / "variable", mnist_files(train=30))))

    given = write(tmp_path / "given", mnist_files(train=50))

    assert len(digits(given).train) == 50
    assert len(digits(given, first=7).train) == 7


def test_the_variable_has_priority_over_the_cache(cache, tmp_path, monkeypatch):
    write(cache, mnist_files(train=50))
    monkeypatch.setenv("GRADSYNC_DATA", str(write(tmp_path / "variable", mnist_files(train=30))))

    assert len(digits().train) == 30


@pytest.mark.parametrize("place", ["home/course/data", "home/shared/mnist"])
def test_mnist_in_the_course_or_beside_it_is_found(place, cache, tmp_path, no_network):
    write(cache, mnist_files())
    root = write(tmp_path / place, mnist_files())

    assert digits().source == f"MNIST from {root}"


def test_mnist_in_the_cache_is_not_downloaded(cache, no_network):
    write(cache, mnist_files())

    assert digits().source == f"MNIST from {cache}"


def test_a_download_goes_into_the_cache(cache, monkeypatch):
    with mirror(import_torchvision().datasets.MNIST, monkeypatch):
        found = digits()

    assert found.is_mnist
    assert mnist_root() == cache


def test_without_a_network_the_builtin_digits_are_used(cache, no_network):
    found = digits(first=7)

    assert not found.is_mnist
    assert len(found.train) == 7


def test_the_builtin_digits_are_announced_in_one_line(cache, no_network, capsys):
    digits()
    digits()

    said = capsys.readouterr().err
    assert said.startswith(
        "gradsync: Using scikit-learn's built-in digits (8x8, enlarged to 28x28)"
    )
    assert said.count("\n") == 1


def test_only_rank_0_announces_the_builtin_digits(cache, no_network, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")

    digits()

    assert capsys.readouterr().err == ""


def test_download_false_prevents_the_download(cache):
    assert "download=False" in digits(download=False).source
    assert not cache.exists()


def test_a_folder_without_mnist_is_refused(tmp_path):
    with pytest.raises(DataError, match="no MNIST in the given folder"):
        digits(tmp_path)


def test_a_variable_without_mnist_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADSYNC_DATA", str(tmp_path))

    with pytest.raises(DataError, match=f"no MNIST in GRADSYNC_DATA, {tmp_path}"):
        digits()


def test_for_an_inner_folder_the_outer_one_is_suggested(tmp_path):
    root = write(tmp_path, mnist_files())

    with pytest.raises(DataError, match=f"Use {root} instead"):
        digits(root / RAW)


def test_a_damaged_cache_names_the_folder_to_delete(cache):
    write(cache, mnist_files() | {f"train-{LABELS}": b"half"})

    with pytest.raises(DataError, match=f"Delete {cache / 'MNIST'} and run this again"):
        digits()


def test_other_damaged_files_name_the_place_for_a_complete_copy(tmp_path):
    root = write(tmp_path, mnist_files() | {f"train-{LABELS}": b"half"})

    with pytest.raises(DataError, match="Put a complete copy of MNIST there"):
        digits(root)


# Values


def test_pixels_equal_those_of_totensor_and_normalize(tmp_path, small):
    theirs = import_torchvision().datasets.MNIST(str(tmp_path / "small"), transform=pipeline())

    assert torch.equal(small.train.images, torch.stack([image for image, _ in theirs]))


def test_a_sample_is_an_image_and_an_int(small):
    image, label = small.train[3]

    assert image.shape == (1, 28, 28)
    assert label == 3


def test_a_plain_loader_gives_usual_batches(small):
    images, labels = next(iter(DataLoader(small.train, batch_size=8)))

    assert (images.shape, images.dtype) == ((8, 1, 28, 28), torch.float32)
    assert (labels.shape, labels.dtype) == ((8,), torch.int64)


def test_a_loader_gives_each_sample_once_with_its_own_label(small):
    batches = list(DataLoader(small.train, batch_size=7, shuffle=True))

    images, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    places = [(small.train.images == image).flatten(1).all(1).nonzero().item() for image in images]
    assert sorted(places) == list(range(40))
    assert torch.equal(labels, small.train.labels[places])


def test_a_subset_works(small):
    _, labels = next(iter(DataLoader(Subset(small.train, [4, 2]), batch_size=2)))

    assert labels.tolist() == [4, 2]


def test_the_first_samples_share_memory_with_all(small):
    few = small.train.first(5)

    assert len(few) == 5
    assert few.images.data_ptr() == small.train.images.data_ptr()


def test_asking_for_too_many_samples_returns_all(small):
    assert len(small.test.first(1000)) == 20


def test_asking_for_no_samples_is_refused(small):
    with pytest.raises(ValueError, match="count must be at least 1"):
        small.test.first(0)


def test_digits_are_pickled_as_two_tensors(small):
    packed = pickle.dumps(small.train)

    assert packed.count(b"_rebuild_tensor") == 1
    assert torch.equal(pickle.loads(packed).images, small.train.images)


def test_the_builtin_digits_are_split_for_training_and_testing(cache):
    builtin = digits(download=False)

    assert (len(builtin.train), len(builtin.test)) == (1437, 360)
    assert builtin.train.images.shape == (1437, 1, 28, 28)


def test_each_builtin_digit_is_in_the_test_set(cache):
    counts = digits(download=False).test.labels.bincount()

    assert counts.min() >= 34
    assert counts.max() <= 38


def test_the_builtin_digits_are_normalised(cache):
    images = digits(download=False).train.images

    assert abs(images.mean()) < 1e-4
    assert abs(images.std() - 1) < 1e-4


def test_the_builtin_split_is_the_same_each_time(cache):
    first, second = digits(download=False), digits(download=False)

    assert torch.equal(first.test.images, second.test.images)


# MNIST itself


@pytest.fixture(scope="module")
def mnist():
    return digits(MNIST)


@with_mnist
def test_mnist_is_complete(mnist):
    assert (len(mnist.train), len(mnist.test)) == (60_000, 10_000)


@with_mnist
def test_mnist_is_normalised(mnist):
    assert abs(mnist.train.images.mean()) < 1e-3
    assert abs(mnist.train.images.std() - 1) < 1e-3
