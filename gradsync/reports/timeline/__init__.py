"""Draw the collectives of a run over time, and write them for other viewers.

`collectives` draws the picture in reports, `overlap` the one of `gradsync trace`; `chrome_trace`
writes a file for trace viewers. The other modules are their parts.
"""
