"""What a process computes with: keys, precision, compiled programs, kept values and files."""
