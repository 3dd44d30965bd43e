"""What Flower starts at the server; the study itself is in study.py."""

from app.study import COLUMNS
from fedbayes.flower import server_app

app = server_app("app.study", coords={"coefficient": COLUMNS}, dims={"beta": ["coefficient"]})
