"""What GPU kernels share that multiply block-scaled operands as they are: none of them, and known
to all of them.

operands.py   which pairs of formats an instruction takes, and how it names them
arguments.py  the struct that kernels are launched with, tensor maps of operands
product.py    a launch on some weights, again and again
"""
