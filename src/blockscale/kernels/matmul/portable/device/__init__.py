"""The Triton code of `portable`. Imported when a product first runs, since Triton is optional.

decode.py    rows of codes and scales as files hold them -> numbers
rows.py      which rows of x, and which matrix, a CTA has
epilogue.py  sums -> results: tensor scales, bias, activation
product.py   the two kernels

What a format is comes as an `Encoding` (portable/encoding.py), a tuple of numbers that the compiler
knows: one mainloop serves all.
"""
