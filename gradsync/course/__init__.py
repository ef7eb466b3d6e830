"""The course on disk: its exercises, templates, guides and known submissions."""
