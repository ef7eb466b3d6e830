"""Launch a trainer on one node or several, with torchrun's elastic agent.

`agent` starts the ranks of this node, `worker` is the program of each rank. `placement` finds out
which node is the master and how to reach it, with `network`. The course says how its trainers are
run, in `support.training`.
"""
