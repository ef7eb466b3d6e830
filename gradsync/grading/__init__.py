"""Grade one submission, or a class, with the test suites of a course."""
