"""A `Report` in words: for a terminal, a browser, a spreadsheet, a program.

Each module has one `render(report) -> str`, pure, and knows `gradsync.records` alone.
There is nothing to import from here: whoever wants JSON should not have to load rich and jinja2.
"""
