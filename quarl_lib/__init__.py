"""Quantized reinforcement-learning policies: studies, inference engines, ActorQ."""

__version__ = "0.1.0"
