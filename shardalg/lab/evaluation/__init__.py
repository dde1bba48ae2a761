"""The paper's measurements, and the predictions of our models."""
