"""What surrounds the engines, once for all of them: the command line, batch runs, traces, replay, serving, clusters."""

__version__ = "0.1.0"
