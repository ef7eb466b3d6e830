"""Code that the suites of this course share: rules, probes, and stand-ins for missing files."""
