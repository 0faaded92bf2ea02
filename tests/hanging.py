"""When something counts as hanging.

A limit of time in a test ends what would never end by itself, and judges no speed: it is far longer
than the work takes on a slow machine whose cores are busy with other tests.
"""

SECONDS = 900
