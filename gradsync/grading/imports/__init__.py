"""Read submissions from the downloads of the platforms where universities collect them.

Each submission is a `platforms.HandedIn`.
"""
