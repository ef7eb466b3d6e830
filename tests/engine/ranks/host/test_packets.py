"""The messages between the fork launcher and its warm process."""

import fcntl
import resource
import socket

import pytest

from gradsync.ranks.host.launchers import packets


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_socket_may_have_a_number_that_select_refuses():
    ours, theirs = packets.pair()
    high = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1024))
    with ours, theirs, high:
        before = packets.receive(high, wait=False)
        packets.send(theirs, do="look")
        message = packets.receive(high, wait=False)
        theirs.close()

        assert (before, message) == ({}, {"do": "look"})
        assert packets.receive(high, wait=False) is None
