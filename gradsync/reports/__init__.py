"""Render a `Report` for a terminal, a browser, a spreadsheet or a program.

Each module has a pure function `render(report) -> str`, and imports only `gradsync.records` and
`gradsync.text`. This file imports nothing, so that a JSON report does not need rich or jinja2.
"""
