"""Submissions as they come from where a university collects them.

Each module knows one kind of download, and yields what was handed in: `handed_in.HandedIn`.
"""
