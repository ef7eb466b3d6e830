"""Launch a trainer on one node or several, with torchrun's elastic agent.

`agent` starts the ranks of this node, and `worker` is the program of each rank. `placement` finds
the master node and its address, with the functions of `network`. The course's `support.training`
defines how its trainers are run.
"""
