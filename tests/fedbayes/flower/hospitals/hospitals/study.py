"""What is fitted: the same on the server and at every site."""

import numpy as np

import fedbayes as fb
from fedbayes.models import heart_disease

model = heart_disease.model
method = fb.EP(solver="laplace", num_replicates=1)


def load_data(config):
    with np.load(config["data-path"]) as file:
        return dict(file)
