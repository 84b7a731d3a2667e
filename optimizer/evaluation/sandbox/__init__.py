"""The process that runs a candidate: it is given inputs and asked for outputs, and knows nothing else.

No reference, no seed and no verdict is ever in its memory; whatever it does to itself, the verifier
compares the bytes it delivers. What the kernel offers to keep it apart from the host is used.
"""
