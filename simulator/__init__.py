"""What-if without hardware: noise models, simulated campaigns, predicted costs and detectable gains."""
