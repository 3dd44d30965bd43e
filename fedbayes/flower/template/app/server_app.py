"""What Flower starts at the server; the study itself is in study.py."""

from fedbayes.flower import server_app

app = server_app("app.study")
