"""What GPU kernels share that read weights in fragments: none of them, and known to all of them.

numbers.py    which products are exact in which dtype
groups.py     how many rows of x and matrices of weights a launch sees
arguments.py  the structs that kernels are launched with, tensor maps of weights
product.py    a launch on some weights, again and again
"""
