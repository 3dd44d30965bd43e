"""A report of a fit in one HTML file, by the steps of the Bayesian analysis reporting guidelines.

References
----------
Kruschke (2021), Bayesian analysis reporting guidelines, Nature Human Behaviour 5, 1282-1291.
"""
