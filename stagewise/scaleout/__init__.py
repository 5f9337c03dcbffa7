"""Batch runs on many machines: the same files, the same answers and the same --resume, with Ray Data."""
