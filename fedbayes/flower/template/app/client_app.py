"""What Flower starts at each site; the study itself is in study.py."""

from fedbayes.flower import client_app

app = client_app("app.study")
