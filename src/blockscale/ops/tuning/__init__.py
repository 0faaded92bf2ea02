"""Measuring which kernel and config is the fastest for a problem, and remembering it.

`choose` asks `stored`; everything else runs only where somebody tunes.
"""
