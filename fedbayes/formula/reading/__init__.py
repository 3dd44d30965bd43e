"""What people read of a regression's fit: coefficients on their natural scale, sites' effects, expected outcomes."""
