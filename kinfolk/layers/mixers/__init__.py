"""Axis Mixer: attention, linear attention, convolutions, recurrent networks."""
