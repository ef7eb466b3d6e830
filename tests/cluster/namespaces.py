"""Two "nodes" on this machine: network namespaces joined by a pair of virtual interfaces."""

import os
import secrets
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

ADDRESSES = ("10.143.0.1", "10.143.0.2")


class Node:
    """A network namespace with one address."""

    def __init__(self, name: str, interface: str, address: str) -> None:
        self.name = name
        self.interface = interface
        self.address = address

    def start(self, *command, output: Path, **environ) -> subprocess.Popen:
        """Start a command on the node; stdout and stderr go to the file `output`."""
        with output.open("w") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *map(str, command)],
                env={**os.environ, **environ},
                stdout=file,
                stderr=subprocess.STDOUT,
            )


@contextmanager
def two_nodes():
    """Create two nodes, joined by a link."""
    tag = secrets.token_hex(3)
    nodes = [Node(f"gs-{tag}-{i}", f"gs{tag}{i}", ADDRESSES[i]) for i in (0, 1)]
    with ExitStack() as undo:
        for node in nodes:
            _ip("netns", "add", node.name)
            undo.callback(_ip, "netns", "delete", node.name)  # and its interfaces
        first, second = nodes
        _ip("link", "add", first.interface, "type", "veth", "peer", "name", second.interface)
        for node in nodes:
            _ip("link", "set", node.interface, "netns", node.name)
            _ip("-n", node.name, "addr", "add", f"{node.address}/24", "dev", node.interface)
            _ip("-n", node.name, "link", "set", node.interface, "up")
            _ip("-n", node.name, "link", "set", "lo", "up")
        yield nodes


def cut(node: Node) -> None:
    """Cut the link between the nodes: packets are lost, and no connection is closed."""
    _ip("-n", node.name, "link", "set", node.interface, "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
