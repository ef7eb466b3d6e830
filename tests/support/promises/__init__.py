"""What both suites ask of an exercise, a function for each promise of its docstring.

A function runs a probe on ranks and checks what it returns. The visible tests call it with small
fixed inputs, the hidden tests with random ones, other world sizes and combinations. So a hidden
test asks for nothing that no visible test asks for.
"""
