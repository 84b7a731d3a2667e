"""Build extensions fast, once, and without changing what a candidate's author writes.

A candidate calls ``load_inline`` or ``load``; inside the evaluating process these are intercepted
(:mod:`remote`), become a :class:`BuildRequest` and go to a :class:`Builder`, in the same process
or, for untrusted code, at the other end of a socket. The builder looks into the content-addressed
cache (:mod:`cache`), else tries its routes in order of speed; the stock route is always the last and
its verdict is the one that counts against a candidate.
"""
