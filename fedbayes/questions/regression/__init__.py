"""What the fit of a regression tells by itself, without the regression."""
