"""Checks of the network interfaces, the master, and its port."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from gradsync.finding import Finding
from gradsync.launch import network, placement
from gradsync.launch.placement import DEFAULT_PORT, LaunchError, Master
from gradsync.text import listed

REACH_SECONDS = 1.0


def interface(environ: Mapping[str, str]) -> Finding:
    """Report the interface that gloo uses, and whether other nodes can reach it."""
    name = "interface"
    why = "if gloo listens at an address that other nodes can't reach, all ranks hang at the start"
    known = network.interfaces()
    others = listed(f"{own} ({address})" for own, address in known.items())
    chosen = environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        if chosen in known:
            found = f"GLOO_SOCKET_IFNAME={chosen}, {known[chosen]}"
            return Finding(name, "ok", found, why)
        found = f"GLOO_SOCKET_IFNAME={chosen}, which does not exist or has no address"
        remedy = f"Unset it, or choose one of {others}."
        return Finding(name, "failed", found, why, remedy)
    address, resolved = network.gloo_address()
    own = network.interface_with(address) or "lo"
    found = f"gloo picks {own} ({address})"
    if not resolved:
        host = socket.gethostname()
        found += f", because the host name {host!r} does not resolve to an address of this machine"
    if not address.startswith("127."):
        return Finding(name, "ok", found, why)
    if _several_nodes(environ):
        remedy = (
            "`gradsync train` chooses the interface that leads to the master. For torchrun itself, "
            f"set GLOO_SOCKET_IFNAME to one of {others}."
        )
        return Finding(name, "warning", found, why, remedy)
    return Finding(name, "ok", f"{found}, which is right for one node", why)


def master(environ: Mapping[str, str]) -> Finding:
    """Check that the master's name can be resolved, and that the master can be reached."""
    name, why = "master", "all nodes connect to its address; ranks that can't reach it hang"
    if "MASTER_ADDR" not in environ and "SLURM_JOB_NODELIST" not in environ:
        own = socket.gethostname()
        found = f"not set, and one node does not need it; this machine is {own}"
        return Finding(name, "ok", found, why)
    try:
        chosen = placement.find_master(environ, None)
    except LaunchError as problem:
        found, _, remedy = str(problem).partition(". ")
        return Finding(name, "failed", found, why, remedy)
    if network.is_this_machine(chosen.address):
        found = f"{chosen.host} ({chosen.address}) is this machine"
        if chosen.address.startswith("127.") and _several_nodes(environ):
            remedy = "Other nodes can't reach this address. Use the address of another interface."
            return Finding(name, "failed", found, why, remedy)
        return Finding(name, "ok", found, why)
    return _reached(name, why, chosen)


def _reached(name: str, why: str, chosen: Master) -> Finding:
    """Connect to a master that is another machine."""
    where = f"{chosen.host}:{chosen.port} ({chosen.address})"
    try:
        socket.create_connection((chosen.address, chosen.port), REACH_SECONDS).close()
    except ConnectionRefusedError:
        found = f"{where} can be reached; nothing listens on its port yet"
        return Finding(name, "ok", found, why)
    except OSError as problem:
        found = f"{where} does not answer: {problem.strerror or 'timed out'}"
        remedy = "Check the address, and whether a firewall blocks the port."
        return Finding(name, "failed", found, why, remedy)
    return Finding(
        name, "ok", f"{where} accepts connections; training checks whether it is the master", why
    )


def port(environ: Mapping[str, str]) -> Finding:
    """Check that the master's port is free on this machine, or name the process that uses it."""
    name, why = "port", 'if another process uses it, torch reports "address already in use"'
    job = environ.get("SLURM_JOB_ID", "")
    usual = DEFAULT_PORT + (int(job) % 1000 if job.isdecimal() else 0)  # as in cluster/job.sh
    text = environ.get("MASTER_PORT", str(usual))
    if not (text.isdecimal() and 0 < int(text) < 2**16):
        found = f"MASTER_PORT={text} is not a port"
        return Finding(name, "failed", found, why, "Use a number from 1024 to 65535.")
    if not network.is_taken(int(text)):
        return Finding(name, "ok", f"{text} is free on this machine", why)
    holder = placement.holder_text(network.holder_of(int(text)))
    remedy = f"Set MASTER_PORT={int(text) + 1} on every node, or stop that process."
    found = f"{text} is in use by {holder}"
    if not {"MASTER_PORT", "MASTER_ADDR", "SLURM_JOB_ID"} & set(environ):
        found += "; `gradsync train` on one node takes a free port"
        return Finding(name, "warning", found, why, f"For several nodes: {remedy}")
    return Finding(name, "failed", found, why, remedy)


def _several_nodes(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a node other than this one."""
    nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
    if nodes != "1":
        return True
    host = environ.get("MASTER_ADDR")
    try:
        return host is not None and not network.is_this_machine(network.address_of(host))
    except OSError:
        return True
