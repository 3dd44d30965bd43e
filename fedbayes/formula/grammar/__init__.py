"""What a formula says: its text cut into parts, its terms, its expressions. Nothing here has seen data."""
