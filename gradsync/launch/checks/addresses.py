"""Checks of the network interfaces, the master, and its port."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from gradsync.finding import Finding, Subject
from gradsync.launch import network, placement
from gradsync.launch.placement import DEFAULT_PORT, LaunchError, Master
from gradsync.text import listed

REACH_SECONDS = 1.0
INTERFACE = Subject(
    "interface",
    "if gloo listens at an address that other nodes can't reach, all ranks hang at the start",
)
MASTER = Subject("master", "all nodes connect to its address; ranks that can't reach it hang")
PORT = Subject("port", 'if another process uses it, torch reports "address already in use"')


def interface(environ: Mapping[str, str]) -> Finding:
    """Report the interface that gloo uses, and whether other nodes can reach it."""
    known = network.interfaces()
    others = listed(f"{own} ({address})" for own, address in known.items())
    if chosen := environ.get("GLOO_SOCKET_IFNAME"):
        found = f"GLOO_SOCKET_IFNAME={chosen}, "
        if chosen in known:
            return INTERFACE.ok(found + known[chosen])
        found += "which does not exist or has no address"
        return INTERFACE.failed(found, f"Unset it, or choose one of {others}.")
    address, resolved = network.gloo_address()
    found = f"gloo picks {network.interface_with(address) or 'lo'} ({address})"
    if not resolved:
        host = socket.gethostname()
        found += f", because the host name {host!r} does not resolve to an address of this machine"
    if not address.startswith("127."):
        return INTERFACE.ok(found)
    if not _several_nodes(environ):
        return INTERFACE.ok(f"{found}, which is right for one node")
    return INTERFACE.warning(
        found,
        "`gradsync train` chooses the interface that leads to the master. For torchrun itself, "
        f"set GLOO_SOCKET_IFNAME to one of {others}.",
    )


def master(environ: Mapping[str, str]) -> Finding:
    """Check that the master's name can be resolved, and that the master can be reached."""
    if "MASTER_ADDR" not in environ and "SLURM_JOB_NODELIST" not in environ:
        own = socket.gethostname()
        return MASTER.ok(f"not set, and one node does not need it; this machine is {own}")
    try:
        chosen = placement.find_master(environ, None)
    except LaunchError as problem:
        found, _, remedy = str(problem).partition(". ")
        return MASTER.failed(found, remedy)
    if not network.is_this_machine(chosen.address):
        return _reached(chosen)
    found = f"{chosen.host} ({chosen.address}) is this machine"
    if chosen.address.startswith("127.") and _several_nodes(environ):
        remedy = "Other nodes can't reach this address. Use the address of another interface."
        return MASTER.failed(found, remedy)
    return MASTER.ok(found)


def _reached(chosen: Master) -> Finding:
    """Connect to a master that is another machine."""
    where = f"{chosen.host}:{chosen.port} ({chosen.address})"
    try:
        socket.create_connection((chosen.address, chosen.port), REACH_SECONDS).close()
    except ConnectionRefusedError:
        return MASTER.ok(f"{where} can be reached; nothing listens on its port yet")
    except OSError as problem:
        found = f"{where} does not answer: {problem.strerror or 'timed out'}"
        return MASTER.failed(found, "Check the address, and whether a firewall blocks the port.")
    return MASTER.ok(f"{where} accepts connections; training checks whether it is the master")


def port(environ: Mapping[str, str]) -> Finding:
    """Check that the master's port is free on this machine, or name the process that uses it."""
    job = environ.get("SLURM_JOB_ID", "")
    usual = DEFAULT_PORT + (int(job) % 1000 if job.isdecimal() else 0)  # as in cluster/job.sh
    text = environ.get("MASTER_PORT", str(usual))
    if not (text.isdecimal() and 0 < int(text) < 2**16):
        found = f"MASTER_PORT={text} is not a port"
        return PORT.failed(found, "Use a number from 1024 to 65535.")
    if not network.is_taken(int(text)):
        return PORT.ok(f"{text} is free on this machine")
    found = f"{text} is in use by {placement.holder_text(network.holder_of(int(text)))}"
    remedy = f"Set MASTER_PORT={int(text) + 1} on every node, or stop that process."
    if {"MASTER_PORT", "MASTER_ADDR", "SLURM_JOB_ID"} & set(environ):
        return PORT.failed(found, remedy)
    found += "; `gradsync train` on one node takes a free port"
    return PORT.warning(found, f"For several nodes: {remedy}")


def _several_nodes(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a node other than this one."""
    if environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        return True
    host = environ.get("MASTER_ADDR")
    try:
        return host is not None and not network.is_this_machine(network.address_of(host))
    except OSError:
        return True
