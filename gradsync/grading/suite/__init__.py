"""Run the tests of a suite on one submission: from files to verdicts."""
