"""Review training scripts: find the pitfalls of distributed training in their source.

`review` reads files and returns the findings of the rules. The files are not run or imported.
"""

from gradsync.review.reviewing import Review, review, review_text

__all__ = ["Review", "review", "review_text"]
