"""The study, and the two apps that Flower starts. Only study.py is to be edited."""
