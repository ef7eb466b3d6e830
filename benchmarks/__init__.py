"""The figures of docs/figures.md, each measured together with the usual alternative."""
