"""What an engine did, step by step: from a trace to a page, or to a file for Perfetto."""
