"""Simulation-based calibration: does the whole pipeline give back, as often as it says, the truth behind the data?"""
