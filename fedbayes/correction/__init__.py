"""How far a Gaussian answer is from the posterior, and the posterior itself by importance weights.

:mod:`~fedbayes.correction.proposal` says where draws are taken, :mod:`~fedbayes.correction.pool` weighs them,
:mod:`~fedbayes.correction.correct` asks the clients, and :mod:`~fedbayes.correction.exact` makes Markov chains of them.
"""
