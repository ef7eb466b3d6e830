"""The figures of docs/figures.md, each measured side by side with the usual alternative."""
