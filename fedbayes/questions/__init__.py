"""What a fit can be asked: of its clients, its prior, its data, and other fits. One subject a file."""
