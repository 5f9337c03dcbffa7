"""From a trace to a page that shows what the engine did, step by step."""
