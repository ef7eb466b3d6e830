"""The same tests on four ranks, run with gradsync and with torch's own classes for tests."""
