"""Read submissions from the downloads of the platforms where universities collect them.

Each module reads one kind of download, and yields each submission as a `handed_in.HandedIn`.
"""
