"""A DLPack producer that lies in any field, and a consumer that sees all of them."""

from hostile.dlpack import NULL, Producer, Received, consume, live_structs

__all__ = ["NULL", "Producer", "Received", "consume", "live_structs"]
