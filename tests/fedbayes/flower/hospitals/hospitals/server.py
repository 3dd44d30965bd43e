from fedbayes.flower import server_app

app = server_app("hospitals.study")
