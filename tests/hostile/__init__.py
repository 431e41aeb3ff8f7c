"""Producers that lie: one for each protocol, every field of which a test can forge."""

from hostile.dlpack import NULL, Producer, Received, consume, live_structs

__all__ = ["NULL", "Producer", "Received", "consume", "live_structs"]
