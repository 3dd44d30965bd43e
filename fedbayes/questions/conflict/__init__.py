"""Conflict between clients: whether what one client says of the globals agrees with what all the others say.

Each client is split from the rest (node splitting: Marshall and Spiegelhalter 2007; Presanis, Ohlssen, Spiegelhalter
and De Angelis 2013). Its cavity ``N(m_k, V_k)`` is the prior times all other sites, and with its own site this gives
the posterior ``N(m, V)``. If the client's data obey the model, then given everybody else's data
``theta ~ N(m_k, V_k)``, and over the client's data

    E[m] = m_k,        V_k = Var(m) + E[V] = Var(m) + V        (law of total variance),

as ``V`` of a Gaussian factor does not depend on its data. So ``m - m_k ~ N(0, V_k - V)``. Both moments are defined
where the client's own site is flat or improper. Where it is a proper ``N(s_k, S_k)``, this is the comparison of the
two: by ``m - m_k = V_k (V_k + S_k)^-1 (s_k - m_k)`` and ``V_k - V = V_k (V_k + S_k)^-1 V_k`` the test of all directions
together is that of ``s_k - m_k ~ N(0, V_k + S_k)``.

:mod:`~fedbayes.questions.conflict.agreement` compares Gaussians, :mod:`~fedbayes.questions.conflict.likelihood` asks
whoever disagrees by its Gaussian form for its likelihood, :mod:`~fedbayes.questions.conflict.question` makes a data set
of it, and :mod:`~fedbayes.questions.conflict.words` says who disagrees about what.

References
----------
Marshall and Spiegelhalter (2007), Identifying outliers in Bayesian hierarchical models: a simulation-based approach,
Bayesian Analysis 2(2). Presanis, Ohlssen, Spiegelhalter and De Angelis (2013), Conflict diagnostics in directed acyclic
graphs, with applications in Bayesian evidence synthesis, Statistical Science 28(3). Holm (1979), A simple sequentially
rejective multiple test procedure, Scandinavian Journal of Statistics 6(2).
"""
