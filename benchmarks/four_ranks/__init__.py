"""The same tests on four ranks, run by gradsync and by torch's own classes for tests."""
