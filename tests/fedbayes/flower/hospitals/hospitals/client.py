from fedbayes.flower import client_app

app = client_app("hospitals.study")
