"""The functions and layers on which statements are searched, and the hand-sized ones on which they fail.

Functions of one variable: ``piecewise`` (curvature linear between knots, exact), ``smooth`` (closed forms), and
``functions``, which gives both to Arb. Layers at a point: ``layers`` (the lemmas' searches; rationals or enclosures),
``exact_layers`` and ``exact_coupled`` (the proofs' searches; rationals alone, eigenbases that turn, layers that
interact). ``draws`` and ``strategies`` draw them. By hand: ``instances``, ``layers_together``, ``cycles``.
"""
