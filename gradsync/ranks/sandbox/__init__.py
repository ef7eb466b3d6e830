"""Trusted: limit what ranks can see and use, with bubblewrap, control groups and seccomp."""
