"""The small CNN: samples are independent, and it learns fast."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gradsync.data import digits
from gradsync.model import SmallCNN

BESIDE_THE_CHECKOUT = Path(__file__).parents[3] / "shared" / "mnist"
MNIST = Path(os.environ.get("GRADSYNC_DATA") or BESIDE_THE_CHECKOUT)


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread, as a rank does; with several, small operations wait for the slowest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return SmallCNN()


def gradients(model, images, labels):
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_it_gives_ten_logits_for_each_image(model):
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_every_parameter_has_a_readable_name(model):
    weights = [f"{layer}.weight" for layer in ("conv1", "conv2", "fc1", "fc2")]

    assert [name for name, _ in model.named_parameters()] == [*weights, "fc2.bias"]


def test_it_is_small(model):
    assert 10_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 60_000


def test_it_has_no_batch_statistics(model):
    assert list(model.buffers()) == []


def test_the_output_for_an_image_does_not_depend_on_its_batch(model):
    images = torch.randn(8, 1, 28, 28)

    torch.testing.assert_close(model(images)[2:3], model(images[2:3]))


def test_training_and_evaluation_compute_the_same(model):
    images = torch.randn(4, 1, 28, 28)

    assert torch.equal(model.train()(images), model.eval()(images))


def test_gradients_of_two_halves_average_to_the_whole_gradient(model):
    images, labels = torch.randn(8, 1, 28, 28), torch.arange(8)
    halves = [gradients(model, images[part], labels[part]) for part in (slice(4), slice(4, 8))]

    means = [(one + other) / 2 for one, other in zip(*halves, strict=True)]
    torch.testing.assert_close(means, gradients(model, images, labels))


def accuracy_after(model, train, test, *, epochs, batch, lr):
    """Train with plain SGD, and return the accuracy on the test set."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for chosen in torch.randperm(len(train)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(train.images[chosen]), train.labels[chosen]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(test.images).argmax(1) == test.labels).float().mean()


def test_it_learns_the_builtin_digits(model, tmp_path, monkeypatch):
    monkeypatch.delenv("GRADSYNC_DATA", raising=False)
    monkeypatch.setattr("gradsync.mnist.usual_folders", lambda: iter([tmp_path]))

    data = digits(download=False)

    assert accuracy_after(model, data.train, data.test, epochs=8, batch=32, lr=0.1) > 0.95


@pytest.mark.skipif(not (MNIST / "MNIST").is_dir(), reason="MNIST is not on this machine")
@pytest.mark.slow
def test_it_learns_mnist_from_ten_thousand_digits(model):
    data = digits(MNIST)
    some = data.train.first(10_000)

    assert accuracy_after(model, some, data.test, epochs=7, batch=50, lr=0.2) > 0.975
