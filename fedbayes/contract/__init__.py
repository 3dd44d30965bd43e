"""The contract between methods and the rooms that all of them share."""
