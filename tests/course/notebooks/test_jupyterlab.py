"""`%%ranks` in JupyterLab, in a real browser."""

import time

import pytest
from chromium import browser
from lab import Lab, server, write_notebook

pytestmark = pytest.mark.slow  # a server, a browser and its kernel
CELLS = [
    "%load_ext gradsync",
    "%%ranks 4\nimport time, torch, torch.distributed as dist\nx = torch.ones(2)\n"
    "dist.all_reduce(x)\nx",
    "%%ranks 4\nif rank in (0, 3):\n    dist.all_reduce(x)",
    "%%ranks 4\ndist.all_reduce(x)\nx * rank",
    "%%ranks 4\nprint('begun')\nif rank == 0:\n    time.sleep(100)\ndist.barrier()",
    "%%ranks 4\ndist.barrier()\nf'alive {int(x[0])}'",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    write_notebook(folder / "ranks.ipynb", CELLS)
    with browser() as started, server(folder) as address:
        opened = Lab(
            started.new_page(viewport={"width": 1200, "height": 1400}), address, "ranks.ipynb"
        )
        opened.load()
        opened.run(1)
        opened.output(1, "tensor([4., 4.])")
        yield opened


def test_equal_output_of_all_ranks_is_shown_once(lab):
    assert lab.output(1, "tensor([4., 4.])").count("tensor") == 1


def test_a_deadlock_is_explained_with_its_timeline(lab):
    lab.run(2)

    text = lab.output(2, "returned without calling all_reduce #1")
    assert "Ranks 1 and 2 returned without calling all_reduce #1 (2 x float32)." in text
    assert "All ranks keep their variables" in text
    drawing = lab.page.locator(".gs-failure svg").first.bounding_box()
    assert drawing["width"] > 500
    assert drawing["height"] > 100


def test_ranks_can_be_used_after_a_deadlock_and_keep_their_colours(lab):
    lab.run(3)

    lab.output(3, "tensor([48., 48.])")
    names = lab.page.locator(".jp-CodeCell").nth(3).locator(".gs-who")
    colours = [names.nth(i).evaluate("e => getComputedStyle(e).color") for i in range(4)]
    assert colours == [
        "rgb(63, 127, 217)",
        "rgb(221, 122, 27)",
        "rgb(47, 154, 91)",
        "rgb(145, 96, 207)",
    ]


def test_the_stop_button_ends_a_cell_and_keeps_the_ranks(lab):
    lab.run(4)
    lab.output(4, "begun")
    time.sleep(0.5)
    lab.stop()

    assert "Rank 0 is at In [" in lab.output(4, "Stopped")
    lab.run(5)
    assert "alive 16" in lab.output(5, "alive 16")
